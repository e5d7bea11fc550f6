import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson behind the lines that tests/interop/programs.py describes: `getLock` on one node, a `RedissonRedLock` of
 * such locks on several. A worker is a thread, as Redisson's owner is one.
 */
public final class Main {
    private static final long WAIT_MS = 5_000;

    private final List<RedissonClient> clients = new ArrayList<>();
    private final Map<String, ExecutorService> threads = new HashMap<>();
    private final Map<String, RLock> held = new ConcurrentHashMap<>();

    private Main(String[] urls) {
        for (String url : urls) {
            Config config = new Config();
            config.setThreads(4).setNettyThreads(4);
            config.useSingleServer().setAddress(url).setConnectionMinimumIdleSize(2).setConnectionPoolSize(16);
            clients.add(Redisson.create(config));
        }
    }

    @SuppressWarnings("deprecation") // Redisson advises one cluster instead of several nodes.
    private RLock lock(String name) {
        RLock[] locks = clients.stream().map(client -> client.getLock(name)).toArray(RLock[]::new);
        return locks.length == 1 ? locks[0] : new RedissonRedLock(locks);
    }

    private String execute(String[] words) {
        try {
            if (words[0].equals("release")) {
                held.remove(words[1]).unlock();
                return "released";
            }
            RLock lock = lock(words[2]);
            held.put(words[1], lock);
            return lock.tryLock(WAIT_MS, Long.parseLong(words[3]), TimeUnit.MILLISECONDS) ? "won" : "lost";
        } catch (Exception error) {
            return "failed " + error.toString().replace('\n', ' ');
        }
    }

    public static void main(String[] urls) {
        Main program = new Main(urls);
        System.out.println("ready");
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ");
            program.threads
                    .computeIfAbsent(words[1], worker -> Executors.newSingleThreadExecutor())
                    .execute(() -> System.out.println(words[1] + " " + program.execute(words)));
        }
        System.exit(0);
    }
}
