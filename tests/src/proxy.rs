//! A network that fails on demand: a TCP proxy in front of a database's socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

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
    /// Connections that are older hear nothing any more.
    forgotten: u64,
}

/// A proxy on a loopback port; it ends, and resets its connections, when dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: watch::Sender<State>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of a Unix socket.
    pub async fn start(socket: PathBuf) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a loopback port");
        let port = listener.local_addr().expect("an address").port();
        let state = watch::Sender::default();
        let accepting = tokio::spawn(accept(listener, socket, state.subscribe()));
        Self { port, state, accepting }
    }

    /// The URL of a PostgreSQL database behind the proxy.
    pub fn postgres_url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }

    /// Changes the network.
    pub fn set(&self, network: Network) {
        self.state.send_modify(|state| state.network = network);
    }

    /// Leaves every open connection half open for good, as a firewall does that has lost its table; new ones are not touched.
    pub fn forget(&self) {
        self.state.send_modify(|state| state.forgotten += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(Network::Reset);
    }
}

async fn accept(listener: TcpListener, socket: PathBuf, state: watch::Receiver<State>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of descriptors, most likely.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        tokio::spawn(carry(client, socket.clone(), state.clone()));
    }
}

/// Carries one connection until either side ends it or the network resets it.
async fn carry(mut client: TcpStream, socket: PathBuf, state: watch::Receiver<State>) {
    let _ = client.set_nodelay(true);
    let now = *state.borrow();
    let mut resets = state.clone();
    let refused = matches!(now.network, Network::Refusing | Network::Reset);
    let wire = Wire { state, born: now.forgotten };
    let carried = tokio::select! {
        _ = resets.wait_for(|state| refused || state.network == Network::Reset) => false,
        () = relay(&mut client, &socket, &wire) => true,
    };
    if !carried {
        // The other side sees a reset, not an orderly end.
        let _ = client.set_zero_linger();
    }
}

async fn relay(client: &mut TcpStream, socket: &Path, wire: &Wire) {
    wire.heard().await;
    // Where nobody listens, the server is down, and the connection ends.
    let Ok(mut server) = UnixStream::connect(socket).await else { return };
    let (client_in, client_out) = client.split();
    let (server_in, server_out) = server.split();
    tokio::select! {
        () = wire.pump(client_in, server_out) => {}
        () = wire.pump(server_in, client_out) => {}
    }
}

/// The network as one connection has it.
#[derive(Debug)]
struct Wire {
    state: watch::Receiver<State>,
    born: u64,
}

impl Wire {
    /// Waits until something comes through.
    async fn heard(&self) {
        let mut state = self.state.clone();
        let carries = |state: &State| state.network != Network::Silent && state.forgotten == self.born;
        if state.wait_for(carries).await.is_err() {
            // The proxy is gone, and the reset that it leaves behind ends the connection.
            std::future::pending::<()>().await;
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
    use tokio::net::UnixListener;

    use super::*;

    async fn echo(listener: UnixListener) {
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
    async fn a_network_is_up_refusing_silent_forgetful_or_reset() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        tokio::spawn(echo(UnixListener::bind(&socket).unwrap()));
        let proxy = Proxy::start(socket).await;
        let connect = || TcpStream::connect(("127.0.0.1", proxy.port));
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

        proxy.forget();
        let silence = tokio::time::timeout(Duration::from_millis(200), asked(&mut new, 7)).await;
        assert!(silence.is_err(), "{silence:?}");
        let mut stream = connect().await.unwrap();
        assert_eq!(asked(&mut stream, 8).await.unwrap(), 8, "what is opened later is not touched");

        proxy.set(Network::Reset);
        assert!(asked(&mut new, 5).await.is_err());
        assert!(asked(&mut stream, 5).await.is_err());
        assert!(asked(&mut connect().await.unwrap(), 6).await.is_err());
    }
}
