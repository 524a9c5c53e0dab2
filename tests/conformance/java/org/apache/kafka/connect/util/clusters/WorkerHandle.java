package org.apache.kafka.connect.util.clusters;

import conformance.OlderClient;
import conformance.WorkerProcess;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.HttpURLConnection;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Stands in for Apache's class of this name, the only place where EmbeddedConnectCluster touches a worker: here a worker
 * is a process, known by its REST address and nothing else. EmbeddedConnectCluster, EmbeddedConnect and
 * ConnectAssertions stay Apache's own.
 *
 * <p>The system property {@code conformance.workers} (1) limits the processes of one cluster. Tests that ask for more
 * workers get more handles of the same processes.
 */
public class WorkerHandle {

    private static final Duration READY = Duration.ofSeconds(120);

    /** A running process, and how many handles share it. */
    private static final class Worker {
        final WorkerProcess process;
        final URI url;
        final OlderClient older; // what the tests call; null where they call the worker itself
        int handles;

        Worker(WorkerProcess process, URI url, Map<String, String> properties) {
            this.process = process;
            this.url = url;
            try {
                older = OlderClient.isNeeded() ? new OlderClient(url, properties) : null;
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    }

    private static final Map<String, List<Worker>> CLUSTERS = new HashMap<>();

    private final String workerName;
    private final String cluster;
    private final Worker worker;
    private boolean stopped;

    private WorkerHandle(String workerName, String cluster, Worker worker) {
        this.workerName = workerName;
        this.cluster = cluster;
        this.worker = worker;
        worker.handles++;
    }

    public static WorkerHandle start(String workerName, Map<String, String> workerProperties) {
        synchronized (CLUSTERS) {
            String cluster = workerProperties.get("bootstrap.servers") + " " + workerProperties.get("group.id");
            List<Worker> workers = CLUSTERS.computeIfAbsent(cluster, c -> new ArrayList<>());
            if (workers.size() >= Integer.getInteger("conformance.workers", 1)) {
                Worker shared = workers.stream().min(Comparator.comparingInt(w -> w.handles)).orElseThrow();
                return new WorkerHandle(workerName, cluster, shared);
            }
            // The original asks for port 0 and looks inside; from outside, the port must be known beforehand.
            URI url = URI.create("http://localhost:" + freePort() + "/");
            Map<String, String> properties = new HashMap<>(workerProperties);
            properties.put("listeners", url.toString().replaceAll("/$", ""));
            WorkerProcess process = WorkerProcess.start(workerProperties.get("group.id") + "-" + workerName, properties);
            Worker worker = new Worker(process, url, properties);
            try {
                WorkerProcess.journal("ready " + process + " GET " + url + " -> " + awaitRest(worker));
            } catch (RuntimeException e) {
                process.stop();
                throw e;
            }
            workers.add(worker);
            return new WorkerHandle(workerName, cluster, worker);
        }
    }

    /** Waits for GET / to be answered: until it is ready, Connect does not listen, or answers 404. */
    private static String awaitRest(Worker worker) {
        long deadline = System.nanoTime() + READY.toNanos();
        while (true) {
            worker.process.failIfDead();
            String problem;
            try {
                HttpURLConnection connection = (HttpURLConnection) worker.url.toURL().openConnection();
                connection.setConnectTimeout(2000);
                connection.setReadTimeout(10000);
                int code = connection.getResponseCode();
                if (code == 200)
                    return new String(connection.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
                problem = "HTTP " + code;
            } catch (IOException e) {
                problem = e.toString();
            }
            if (System.nanoTime() > deadline)
                throw new IllegalStateException(worker.process + " is not ready at " + worker.url + ": " + problem);
            worker.process.await(Duration.ofMillis(100));
        }
    }

    /** A free port below the range that the system gives to outgoing connections. */
    private static int freePort() {
        for (int attempt = 0; attempt < 100; attempt++) {
            int port = ThreadLocalRandom.current().nextInt(15000, 20000);
            try (ServerSocket socket = new ServerSocket(port, 1, InetAddress.getByName("localhost"))) {
                return socket.getLocalPort();
            } catch (IOException taken) {
                // try another
            }
        }
        throw new IllegalStateException("no free port");
    }

    /** SIGTERM to the process when its last handle is stopped. */
    public void stop() {
        synchronized (CLUSTERS) {
            if (stopped) return;
            stopped = true;
            if (--worker.handles > 0) return;
            CLUSTERS.get(cluster).remove(worker);
            if (worker.older != null) worker.older.close();
            if (!worker.process.stop()) throw new UngracefulShutdownException(this + " had to be killed");
        }
    }

    public URI url() {
        return worker.older == null ? worker.url : worker.older.url();
    }

    public URI adminUrl() {
        return url();
    }

    public Future<?> herderTask() {
        throw new UnsupportedOperationException("a worker in another process has no herder task here");
    }

    public void requestTimeout(long timeoutMs) {
        throw new UnsupportedOperationException("cannot be set in another process");
    }

    public void resetRequestTimeout() {
        throw new UnsupportedOperationException("cannot be set in another process");
    }

    @Override
    public String toString() {
        return workerName + " at " + worker.url + ", process " + worker.process;
    }
}
