import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/** Sessions that take one lock again and again, for a while at each line of input: HOST SESSIONS MILLISECONDS. */
public class Crowd {
    public static void main(String[] words) throws Exception {
        int sessions = Integer.parseInt(words[1]), milliseconds = Integer.parseInt(words[2]);
        InterProcessMutex[] locks = new InterProcessMutex[sessions];
        for (int at = 0; at < sessions; at++) {
            CuratorFramework client = CuratorFrameworkFactory.newClient(words[0], new RetryOneTime(100));
            client.start();
            client.blockUntilConnected();
            locks[at] = new InterProcessMutex(client, "/curator/crowd");
        }
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            int[] counts = new int[sessions];
            long until = System.nanoTime() + milliseconds * 1_000_000L;
            Thread[] threads = new Thread[sessions];
            for (int number = 0; number < sessions; number++) {
                int at = number;
                threads[at] = new Thread(() -> {
                    try {
                        while (System.nanoTime() < until) {
                            locks[at].acquire();
                            locks[at].release();
                            counts[at]++;
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
            System.out.println(Arrays.stream(counts).mapToObj(Integer::toString).collect(Collectors.joining(" ")));
        }
        System.exit(0);
    }
}
