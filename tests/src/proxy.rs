//! A network that fails on demand: a TCP proxy in front of a database's socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
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

/// A proxy on a loopback port; it ends, and resets its connections, when dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    network: Arc<watch::Sender<Network>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of a Unix socket.
    pub async fn start(socket: PathBuf) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a loopback port");
        let port = listener.local_addr().expect("an address").port();
        let network = Arc::new(watch::Sender::new(Network::Up));
        let accepting = tokio::spawn(accept(listener, socket, network.subscribe()));
        Self { port, network, accepting }
    }

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a PostgreSQL database behind the proxy.
    pub fn postgres_url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }

    /// Changes the network.
    pub fn set(&self, network: Network) {
        self.network.send_replace(network);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(Network::Reset);
    }
}

async fn accept(listener: TcpListener, socket: PathBuf, network: watch::Receiver<Network>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of descriptors, most likely.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        tokio::spawn(carry(client, socket.clone(), network.clone()));
    }
}

/// Carries one connection until either side ends it or the network resets it.
async fn carry(mut client: TcpStream, socket: PathBuf, mut network: watch::Receiver<Network>) {
    let _ = client.set_nodelay(true);
    if matches!(*network.borrow(), Network::Refusing | Network::Reset) {
        // The other side sees a reset, not an orderly end.
        let _ = client.set_zero_linger();
        return;
    }
    let reset = {
        let mut network = network.clone();
        async move { network.wait_for(|network| *network == Network::Reset).await.is_ok() }
    };
    tokio::select! {
        _ = reset => {
            let _ = client.set_zero_linger();
        }
        () = relay(&mut client, &socket, &mut network) => {}
    }
}

async fn relay(client: &mut TcpStream, socket: &Path, network: &mut watch::Receiver<Network>) {
    heard(network).await;
    // Nobody listens there: the server is down, and a reset says so.
    let Ok(mut server) = UnixStream::connect(socket).await else { return };
    let (client_in, client_out) = client.split();
    let (server_in, server_out) = server.split();
    tokio::select! {
        () = pump(client_in, server_out, network.clone()) => {}
        () = pump(server_in, client_out, network.clone()) => {}
    }
}

/// Waits until the network carries something.
async fn heard(network: &mut watch::Receiver<Network>) {
    let _ = network.wait_for(|network| *network != Network::Silent).await;
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut network: watch::Receiver<Network>,
) {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut bytes).await;
        // Also the end of a connection is not heard of through a silent network.
        heard(&mut network).await;
        match read {
            Ok(length) if length > 0 && to.write_all(&bytes[..length]).await.is_ok() => {}
            _ => return,
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
    async fn a_network_is_up_silent_refusing_or_reset() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        tokio::spawn(echo(UnixListener::bind(&socket).unwrap()));
        let proxy = Proxy::start(socket).await;
        let connect = || TcpStream::connect(("127.0.0.1", proxy.port()));
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

        proxy.set(Network::Reset);
        assert!(asked(&mut stream, 5).await.is_err());
        assert!(asked(&mut connect().await.unwrap(), 6).await.is_err());
    }
}
