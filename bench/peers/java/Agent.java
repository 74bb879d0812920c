// Measures Curator. The protocol is in ../README.md.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

public class Agent {
    private static String peer;
    private static int lease;
    private static String hosts;
    private static final List<Object> kept = new ArrayList<>();
    /** Those that contend: to close one takes a second. */
    private static final List<CuratorFramework> rivals = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        peer = arguments[0];
        lease = Integer.parseInt(arguments[1]);
        hosts = Arrays.stream(arguments).skip(2).map(server -> URI.create(server).getAuthority())
                .collect(Collectors.joining(","));
        try (CuratorFramework probe = connect()) {
            System.out.printf("{\"peer\": \"%s\", \"version\": \"%s\"}%n", peer, version());
        } catch (Exception error) {
            System.out.printf("{\"cannot\": \"%s\"}%n", error.toString().replace('"', '\''));
            return;
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                System.out.println(answer(line.split(" ")));
            } catch (Exception error) {
                System.out.printf("{\"error\": \"%s\"}%n", error.toString().replace('"', '\''));
            }
            System.out.flush();
        }
        System.exit(0);
    }

    private static String answer(String[] words) throws Exception {
        String name = words[1];
        switch (words[0]) {
            case "uncontended":
                return nanoseconds(uncontended(name, Integer.parseInt(words[2])));
            case "handover":
                return nanoseconds(handover(name, Arrays.stream(words).skip(2).mapToLong(Long::parseLong).toArray()));
            case "contended":
                return contended(name, Integer.parseInt(words[2]), Long.parseLong(words[3]), Long.parseLong(words[4]));
            case "hold":
                InterProcessLock lock = lock(connect(), name);
                lock.acquire();
                kept.add(lock);
                return "{\"held\": true}";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** As its build notes it: on Debian neither the file's name nor the manifest has it. */
    private static String version() throws IOException {
        String note = "/META-INF/maven/org.apache.curator/curator-framework/pom.properties";
        Properties properties = new Properties();
        try (InputStream stream = CuratorFramework.class.getResourceAsStream(note)) {
            if (stream != null) {
                properties.load(stream);
            }
        }
        return properties.getProperty("version", "");
    }

    private static List<Long> uncontended(String name, int pairs) throws Exception {
        List<Long> took = new ArrayList<>(pairs);
        try (CuratorFramework client = connect()) {
            InterProcessLock lock = lock(client, name);
            for (int pair = 0; pair < pairs; pair++) {
                long start = System.nanoTime();
                lock.acquire();
                lock.release();
                took.add(System.nanoTime() - start);
            }
        }
        return took;
    }

    private static List<Long> handover(String name, long[] waits) throws Exception {
        List<Long> took = new ArrayList<>(waits.length);
        ExecutorService other = Executors.newSingleThreadExecutor();
        try (CuratorFramework first = connect(); CuratorFramework second = connect()) {
            InterProcessLock holder = lock(first, name);
            InterProcessLock waiter = lock(second, name);
            for (long wait : waits) {
                holder.acquire();
                Future<Long> got = other.submit(() -> {
                    waiter.acquire();
                    long now = System.nanoTime();
                    waiter.release();
                    return now;
                });
                Thread.sleep(wait);
                long start = System.nanoTime();
                holder.release();
                took.add(got.get() - start);
            }
        } finally {
            other.shutdown();
        }
        return took;
    }

    private static String contended(String name, int clients, long section, long milliseconds) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(clients);
        CyclicBarrier ready = new CyclicBarrier(clients);
        AtomicBoolean isHeld = new AtomicBoolean();
        while (rivals.size() < clients) {
            rivals.add(connect());
        }
        List<Callable<List<Long>>> contending = new ArrayList<>();
        for (CuratorFramework client : rivals.subList(0, clients)) {
            contending.add(() -> {
                List<Long> waits = new ArrayList<>();
                InterProcessLock own = lock(client, name + "-" + UUID.randomUUID());
                own.acquire();
                own.release();
                InterProcessLock lock = lock(client, name);
                ready.await();
                long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(milliseconds);
                while (System.nanoTime() < end) {
                    long start = System.nanoTime();
                    lock.acquire();
                    waits.add(System.nanoTime() - start);
                    if (section > 0) {
                        if (isHeld.getAndSet(true)) {
                            lock.release(); // or the others would not end
                            throw new IllegalStateException("two of its clients held the same lock");
                        }
                        TimeUnit.MICROSECONDS.sleep(section);
                        isHeld.set(false);
                    }
                    lock.release();
                }
                return waits;
            });
        }
        List<String> all = new ArrayList<>();
        for (Future<List<Long>> waits : threads.invokeAll(contending)) {
            all.add(waits.get().toString());
        }
        threads.shutdown();
        return String.format("{\"clients\": %s, \"seconds\": %s}", all, milliseconds / 1e3);
    }

    private static String nanoseconds(List<Long> values) {
        return "{\"nanoseconds\": " + values + "}";
    }

    private static CuratorFramework connect() throws Exception {
        CuratorFramework client =
                CuratorFrameworkFactory.newClient(hosts, lease, 5_000, new ExponentialBackoffRetry(50, 3));
        client.start();
        if (!client.blockUntilConnected(5, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not connected within 5 s");
        }
        return client;
    }

    private static InterProcessLock lock(CuratorFramework client, String name) {
        return peer.equals("curator-semaphore")
                ? new InterProcessSemaphoreMutex(client, "/peers/" + name)
                : new InterProcessMutex(client, "/peers/" + name);
    }
}
