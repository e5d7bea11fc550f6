//! rslock behind the lines that `tests/interop/programs.py` describes. Its tries are 0 to 200 ms apart, as by default.

use rslock::{Lock, LockError, LockManager};
use std::{collections::HashMap, env, sync::Arc, time::Duration};
use tokio::io::{stdin, AsyncBufReadExt, BufReader};
use tokio::sync::Mutex;

const TRIES: u32 = 50; // for 5 s on average, where the default gives up after 3
const PAUSE: Duration = Duration::from_millis(200);

type Held = Arc<Mutex<HashMap<String, Lock>>>;

async fn acquire(manager: LockManager, held: Held, worker: &str, name: &str, lease: Duration) {
    match manager.lock(name.as_bytes(), lease).await {
        Ok(lock) => {
            held.lock().await.insert(worker.to_string(), lock);
            println!("{worker} won");
        }
        Err(LockError::Unavailable) => println!("{worker} lost"),
        Err(error) => println!("{worker} failed {error}"),
    }
}

#[tokio::main]
async fn main() {
    let mut manager = LockManager::new(env::args().skip(1).collect());
    manager.set_retry(TRIES, PAUSE);
    let held = Held::default();
    println!("ready");
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await.expect("stdin is readable") {
        let (manager, held) = (manager.clone(), held.clone());
        tokio::spawn(async move {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["acquire", worker, name, lease] => {
                    let lease = Duration::from_millis(lease.parse().expect("the lease is a number"));
                    acquire(manager, held, worker, name, lease).await;
                }
                ["release", worker] => {
                    let lock = held.lock().await.remove(worker);
                    manager.unlock(&lock.expect("the worker won")).await;
                    println!("{worker} released");
                }
                _ => println!("0 failed unknown command: {line}"),
            }
        });
    }
}
