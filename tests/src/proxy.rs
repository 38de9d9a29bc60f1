//! A network that fails on demand: a proxy before PostgreSQL.

use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How the network is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Network {
    /// Everything comes through.
    #[default]
    Up,
    /// Open connections go on, new ones are reset.
    Refusing,
    /// Open connections are reset, and so are new ones.
    Reset,
    /// Nothing comes through, and nobody is told: open connections stay half open, new ones connect and hear nothing. What
    /// was sent meanwhile arrives when the network is back, as after a retransmission.
    Silent,
}

/// What connections go by.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    network: Network,
    /// How many connections have been made; each has the number of those before it.
    connections: usize,
    /// Those below this number are half open for good.
    frozen: usize,
}

#[derive(Debug, Clone)]
enum Target {
    Socket(PathBuf),
    Tcp(String),
}

/// A proxy on a loopback port; it ends, and resets its connections, when dropped.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    state: Arc<watch::Sender<State>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// A proxy before the database at `url`.
    pub async fn start(url: &str) -> Self {
        let options = PgConnectOptions::from_str(url).expect("a database's URL");
        let target = match options.get_socket() {
            Some(folder) => Target::Socket(folder.join(format!(".s.PGSQL.{}", options.get_port()))),
            None => Target::Tcp(format!("{}:{}", options.get_host(), options.get_port())),
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a loopback port");
        let port = listener.local_addr().expect("an address").port();
        let url = match &target {
            Target::Socket(_) => {
                let database = options.get_database().unwrap_or("postgres");
                format!("postgres://{}@127.0.0.1:{port}/{database}", options.get_username())
            }
            Target::Tcp(_) => options.host("127.0.0.1").port(port).to_url_lossy().to_string(),
        };
        let state = Arc::<watch::Sender<State>>::default();
        let accepting = tokio::spawn(accept(listener, target, Arc::clone(&state)));
        Self { url, state, accepting }
    }

    /// How to connect through it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Changes the network.
    pub fn set(&self, network: Network) {
        self.state.send_modify(|state| state.network = network);
    }

    /// Leaves every connection there is half open for good, as a firewall does that has lost its table; new ones are as
    /// good as ever.
    pub fn freeze(&self) {
        self.state.send_modify(|state| state.frozen = state.connections);
    }

    /// How many connections have been made through it.
    pub fn connections(&self) -> usize {
        self.state.borrow().connections
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(Network::Reset);
    }
}

async fn accept(listener: TcpListener, target: Target, state: Arc<watch::Sender<State>>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of descriptors, most likely.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let mut number = 0;
        state.send_modify(|state| {
            number = state.connections;
            state.connections += 1;
        });
        tokio::spawn(carry(client, target.clone(), Wire { state: state.subscribe(), number }));
    }
}

/// Carries one connection until either side ends it or the network resets it.
async fn carry(mut client: TcpStream, target: Target, wire: Wire) {
    let _ = client.set_nodelay(true);
    let mut state = wire.state.clone();
    let refused = state.borrow().network == Network::Refusing;
    let carried = tokio::select! {
        _ = state.wait_for(|state| refused || state.network == Network::Reset) => false,
        () = relay(&mut client, &target, &wire) => true,
    };
    if !carried {
        // The other side sees a reset, not an orderly end.
        let _ = client.set_zero_linger();
    }
}

async fn relay(client: &mut TcpStream, target: &Target, wire: &Wire) {
    wire.heard().await;
    // Where nobody listens, the server is down, and the connection ends.
    match target {
        Target::Socket(path) => {
            let Ok(server) = UnixStream::connect(path).await else { return };
            wire.join(client, server.into_split()).await;
        }
        Target::Tcp(address) => {
            let Ok(server) = TcpStream::connect(address).await else { return };
            wire.join(client, server.into_split()).await;
        }
    }
}

/// The network as one connection has it.
#[derive(Debug)]
struct Wire {
    state: watch::Receiver<State>,
    number: usize,
}

impl Wire {
    /// Waits until something comes through.
    async fn heard(&self) {
        let mut state = self.state.clone();
        let carries = |state: &State| state.network != Network::Silent && state.frozen <= self.number;
        if state.wait_for(carries).await.is_err() {
            // The proxy is gone, and the reset that it leaves behind ends the connection.
            std::future::pending::<()>().await;
        }
    }

    async fn join(&self, client: &mut TcpStream, server: (impl AsyncRead + Unpin, impl AsyncWrite + Unpin)) {
        let (client_in, client_out) = client.split();
        tokio::select! {
            () = self.pump(client_in, server.1) => {}
            () = self.pump(server.0, client_out) => {}
        }
    }

    async fn pump(&self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
        let mut bytes = vec![0; 16 << 10];
        loop {
            let read = from.read(&mut bytes).await;
            // Nor is the end of a connection heard of through a silent network.
            self.heard().await;
            match read {
                Ok(length) if length > 0 && to.write_all(&bytes[..length]).await.is_ok() => {}
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo(listener: TcpListener) {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    }

    async fn asked(stream: &mut TcpStream, byte: u8) -> std::io::Result<u8> {
        stream.write_u8(byte).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn a_network_is_up_refusing_silent_frozen_or_reset() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("postgres://user@{}/database", listener.local_addr().unwrap());
        tokio::spawn(echo(listener));
        let proxy = Proxy::start(&url).await;
        let port = PgConnectOptions::from_str(proxy.url()).unwrap().get_port();
        let connect = || TcpStream::connect(("127.0.0.1", port));
        let mut stream = connect().await.unwrap();
        assert_eq!(asked(&mut stream, 1).await.unwrap(), 1);

        proxy.set(Network::Refusing);
        assert_eq!(asked(&mut stream, 2).await.unwrap(), 2, "what is open goes on");
        assert!(asked(&mut connect().await.unwrap(), 3).await.is_err());

        proxy.set(Network::Silent);
        let mut new = connect().await.unwrap();
        for stream in [&mut stream, &mut new] {
            let silence = tokio::time::timeout(Duration::from_millis(200), asked(stream, 4)).await;
            assert!(silence.is_err(), "{silence:?}");
        }
        proxy.set(Network::Up);
        assert_eq!(stream.read_u8().await.unwrap(), 4, "what was lost is sent again");
        assert_eq!(new.read_u8().await.unwrap(), 4);

        proxy.freeze();
        let silence = tokio::time::timeout(Duration::from_millis(200), asked(&mut new, 7)).await;
        assert!(silence.is_err(), "{silence:?}");
        let mut stream = connect().await.unwrap();
        assert_eq!(asked(&mut stream, 8).await.unwrap(), 8, "what is opened later is not touched");

        proxy.set(Network::Reset);
        assert!(asked(&mut new, 5).await.is_err());
        assert!(asked(&mut stream, 5).await.is_err());
        assert!(asked(&mut connect().await.unwrap(), 6).await.is_err());
        assert_eq!(proxy.connections(), 5);
    }
}
