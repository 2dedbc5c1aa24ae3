//! Tests of a server that requires certificates or a password.

use std::{fs, path::Path};

use limits::rules::Rules;
use limits_sharing::Address;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use redis::Value;
use tempfile::TempDir;

use crate::{
    exact::Callers,
    server::{Server, free_port},
    world::{GROUP, World},
};

/// Creates a certificate authority with the certificate NAME.pem.
fn authority(dir: &Path, name: &str) -> Issuer<'static, KeyPair> {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let pem = params.self_signed(&key).unwrap().pem();
    fs::write(dir.join(format!("{name}.pem")), pem).unwrap();
    Issuer::new(params, key)
}

/// Creates a certificate for the loopback address, NAME.pem, and its key, NAME.key.
fn identity(dir: &Path, name: &str, authority: &Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let certificate = params.signed_by(&key, authority).unwrap();
    fs::write(dir.join(format!("{name}.pem")), certificate.pem()).unwrap();
    fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

/// The address from a `[sharing]` table.
fn address(port: u16, files: &[(&str, &Path, &str)]) -> Address {
    let files = files.iter().map(|(key, dir, name)| {
        let path = dir.join(name);
        format!("{key} = '{}'\n", path.display())
    });
    let files: String = files.collect();
    let text = format!(
        "[sharing]\nmode = 'lease'\ngroup = '{GROUP}'\nredis = 'rediss://127.0.0.1:{port}'\n{files}\n\
         [limits.a]\nrules = [ {{ id = 'r', rate = '1/s' }} ]\n"
    );
    let rules = Rules::parse(&text).unwrap();
    Address::of(&rules.sharing.unwrap()).unwrap()
}

#[tokio::test]
async fn client_and_server_authenticate_each_other() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let ours = authority(dir, "ours");
    authority(dir, "others");
    identity(dir, "server", &ours);
    identity(dir, "client", &ours);
    let path = |name| dir.join(name).display().to_string();
    let (certificate, key, trusted) = (path("server.pem"), path("server.key"), path("ours.pem"));
    let port = free_port();
    let number = port.to_string();
    let options = [
        ["--tls-port", &number],
        ["--tls-cert-file", &certificate],
        ["--tls-key-file", &key],
        ["--tls-ca-cert-file", &trusted],
        ["--tls-auth-clients", "yes"],
    ];
    let Some(server) = Server::start_with(options.as_flattened()).await else {
        return;
    };
    let [ca, cert, key] = [
        ("tls_ca", dir, "ours.pem"),
        ("tls_cert", dir, "client.pem"),
        ("tls_key", dir, "client.key"),
    ];
    let good = address(port, &[ca, cert, key]);
    good.check().unwrap();
    let callers = Callers::start([good.clone()]).await;
    assert!(callers.call(0, 0).await);
    let world = World::start(200_000, std::array::from_fn(|_| good.clone()));
    world.until_shared().await;
    world.end().await;
    let plain = server.socket().port();
    let of_others = ("tls_ca", dir, "others.pem");
    for (address, expected) in [
        (address(port, &[of_others, cert, key]), "UnknownIssuer"),
        (address(port, &[ca]), "CertificateRequired"),
        (address(plain, &[ca]), "check that the port uses TLS"),
        (address(port, &[("tls_ca", dir, "ours.key")]), "tls_ca: "),
    ] {
        let world = World::start(200_000, std::array::from_fn(|_| address.clone()));
        world
            .until(expected, |it| {
                let error = it.lease.error();
                error.is_some_and(|error| error.contains(expected))
            })
            .await;
        world.end().await;
    }
}

#[tokio::test]
async fn documented_permissions_are_sufficient() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/limiter.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, line) = page.split_once("redis-cli ACL SETUSER ").unwrap();
    let (line, _) = line.split_once("\n```").unwrap();
    let rights = line.replace(['\'', '\\'], "").replace("PASSWORD", "secret");
    let Some(server) = Server::start().await else {
        return;
    };
    let _: Value = server.ask(&format!("acl setuser {rights}")).await;
    let _: Value = server.ask("acl setuser default off").await;
    let address = format!("redis://limits:secret@{}", server.socket());
    let address = Address::parse(&address).unwrap();
    let callers = Callers::start([address.clone()]).await;
    assert!(callers.call(0, 0).await);
    let world = World::start(200_000, std::array::from_fn(|_| address.clone()));
    world.until_shared().await;
    world.end().await;
}
