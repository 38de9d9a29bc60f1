//! A proxy before PostgreSQL whose connections can become half open: nothing comes through any more, and nobody is told.

use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinSet;

/// A running proxy; it ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    frozen: Arc<Frozen>,
    _serving: JoinSet<()>,
}

/// Connections are numbered; those below a number are frozen.
#[derive(Debug, Default)]
struct Frozen {
    next: AtomicUsize,
    below: AtomicUsize,
}

#[derive(Debug, Clone)]
enum Target {
    Socket(PathBuf),
    Tcp(String),
}

impl Proxy {
    /// A proxy before the database at `url`.
    pub async fn start(url: &str) -> Self {
        let options = PgConnectOptions::from_str(url).expect("a database's URL");
        let port = options.get_port();
        let target = match options.get_socket() {
            Some(folder) => Target::Socket(folder.join(format!(".s.PGSQL.{port}"))),
            None => Target::Tcp(format!("{}:{port}", options.get_host())),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let url = match &target {
            Target::Socket(_) => {
                let database = options.get_database().unwrap_or("postgres");
                format!("postgres://{}@127.0.0.1:{port}/{database}", options.get_username())
            }
            Target::Tcp(_) => sqlx::ConnectOptions::to_url_lossy(&options.host("127.0.0.1").port(port)).to_string(),
        };
        let frozen = Arc::<Frozen>::default();
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, target, Arc::clone(&frozen)));
        Self { url, frozen, _serving: serving }
    }

    /// How to connect through it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Leaves every connection there is half open; new ones are as good as ever.
    pub fn freeze(&self) {
        self.frozen.below.store(self.frozen.next.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// How many connections have been made through it.
    pub fn connections(&self) -> usize {
        self.frozen.next.load(Ordering::SeqCst)
    }
}

async fn serve(listener: TcpListener, target: Target, frozen: Arc<Frozen>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let number = frozen.next.fetch_add(1, Ordering::SeqCst);
        let (target, frozen) = (target.clone(), Arc::clone(&frozen));
        connections.spawn(async move {
            match target {
                Target::Socket(path) => {
                    let Ok(server) = UnixStream::connect(path).await else { return };
                    let (read, write) = server.into_split();
                    join(client, read, write, number, &frozen).await;
                }
                Target::Tcp(address) => {
                    let Ok(server) = TcpStream::connect(address).await else { return };
                    let (read, write) = server.into_split();
                    join(client, read, write, number, &frozen).await;
                }
            }
        });
    }
}

async fn join<R, W>(client: TcpStream, server_read: R, server_write: W, number: usize, frozen: &Frozen)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (client_read, client_write) = client.into_split();
    tokio::select! {
        () = copy(client_read, server_write, number, frozen) => {}
        () = copy(server_read, client_write, number, frozen) => {}
    }
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, number: usize, frozen: &Frozen) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(read) = from.read(&mut buffer).await else { return };
        if number < frozen.below.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
