import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/** Increments a counter under a lock of Curator: HOSTS PATH ROUNDS, in the folder of the counter. */
public class Foreign {
    public static void main(String[] words) throws Exception {
        Path counter = Path.of("counter"), probe = Path.of("probe");
        try (CuratorFramework client = CuratorFrameworkFactory.newClient(words[0], new RetryOneTime(100))) {
            client.start();
            InterProcessMutex lock = new InterProcessMutex(client, words[1]);
            for (int round = 0; round < Integer.parseInt(words[2]); round++) {
                lock.acquire();
                try {
                    Files.createFile(probe);
                    int number = Integer.parseInt(Files.readString(counter).trim());
                    Thread.sleep(1);
                    Files.writeString(counter, Integer.toString(number + 1));
                    Files.delete(probe);
                } finally {
                    lock.release();
                }
            }
        }
    }
}
