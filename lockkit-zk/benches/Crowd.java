import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/** Sessions that take one lock again and again: HOST SESSIONS SECONDS. */
public class Crowd {
    public static void main(String[] words) throws Exception {
        int sessions = Integer.parseInt(words[1]), seconds = Integer.parseInt(words[2]);
        CuratorFramework[] clients = new CuratorFramework[sessions];
        for (int at = 0; at < sessions; at++) {
            clients[at] = CuratorFrameworkFactory.newClient(words[0], new RetryOneTime(100));
            clients[at].start();
            clients[at].blockUntilConnected();
        }
        // The first round warms up.
        for (int round = 0; round < 2; round++) {
            AtomicLong total = new AtomicLong();
            long until = System.nanoTime() + seconds * 1_000_000_000L;
            Thread[] threads = new Thread[sessions];
            for (int at = 0; at < sessions; at++) {
                InterProcessMutex lock = new InterProcessMutex(clients[at], "/curator/crowd");
                threads[at] = new Thread(() -> {
                    try {
                        while (System.nanoTime() < until) {
                            lock.acquire();
                            lock.release();
                            total.incrementAndGet();
                        }
                    } catch (Exception error) {
                        throw new RuntimeException(error);
                    }
                });
                threads[at].start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
            if (round > 0) {
                System.out.printf("%d sessions on one lock, Curator: %d a second%n", sessions, total.get() / seconds);
            }
        }
        System.exit(0);
    }
}
