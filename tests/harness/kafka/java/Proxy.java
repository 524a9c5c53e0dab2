import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;

/**
 * TCP routes that can be slow or cut. A delay does not limit throughput: chunks get a timestamp on arrival and wait in a
 * queue, until QUEUE_BYTES_MAX are in flight.
 *
 * <p>Usage: Proxy LISTEN:TARGET ... (ports of 127.0.0.1). Commands on standard input, each with the reply "ok" or "no":
 *
 * <pre>
 *   LISTEN delay MILLISECONDS      each way
 *   LISTEN throttle BYTES_PER_S    each way, all connections together; 0 is no limit
 *   LISTEN cut                     closes every connection, and every new one at once
 *   LISTEN blackhole               keeps connections, forwards nothing
 *   LISTEN heal                    ends cut and blackhole; held data is forwarded
 *   LISTEN hold API_KEY STRING     keeps the next request with that key and string, and closes its connection
 *   LISTEN held                    "no" until such a request has arrived
 *   LISTEN deliver                 sends the held request on its own connection, and waits for the broker's response
 *   LISTEN late MILLISECONDS       breaks every connection; requests in flight reach the broker that much later
 * </pre>
 *
 * <p>The proxy ends at the end of its standard input.
 */
public final class Proxy {
    private static final int CHUNK = 256 << 10; // a fetch response has megabytes, so threads switch rarely
    private static final int COPY_BELOW = CHUNK / 4; // a small chunk must not hold a large buffer while it waits
    private static final long QUEUE_BYTES_MAX = 256L << 20; // 80 ms at 3 GB/s
    private static final int POOLED_MAX = 64;
    private static final long CATCH_UP_NANOS = 10_000_000; // compensates for sleeps that were too long
    private static final long LATE_NANOS = 200_000_000; // before connections break, so that all requests are in flight

    private Proxy() {}

    public static void main(String[] arguments) throws IOException {
        Map<Integer, Route> routes = new ConcurrentHashMap<>();
        for (String argument : arguments) {
            String[] ports = argument.split(":");
            Route route = new Route(Integer.parseInt(ports[0]), Integer.parseInt(ports[1]));
            routes.put(route.listen, route);
            route.open();
        }
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ok");
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.trim().split(" ");
            System.out.println(routes.get(Integer.parseInt(words[0])).command(words) ? "ok" : "no");
        }
        Runtime.getRuntime().halt(0);
    }

    /** Forwards one port to another. */
    private static final class Route {
        final int listen;
        final int target;
        final Set<SocketChannel> open = ConcurrentHashMap.newKeySet();
        final Set<Connection> connections = ConcurrentHashMap.newKeySet();
        final Throttle[] throttles = {new Throttle(), new Throttle()};
        volatile long delayNanos;
        volatile boolean cut;
        private boolean hole; // this and the next three: guarded by this
        private short wantedKey;
        private byte[] wantedString; // null if no request is to be held
        private byte[] held;

        Route(int listen, int target) {
            this.listen = listen;
            this.target = target;
        }

        void open() throws IOException {
            ServerSocketChannel server = ServerSocketChannel.open();
            server.setOption(StandardSocketOptions.SO_REUSEADDR, true);
            server.bind(new InetSocketAddress("127.0.0.1", listen), 1024);
            thread("accept " + listen, () -> {
                while (true) {
                    accept(server.accept());
                }
            });
        }

        boolean command(String[] words) throws IOException {
            switch (words[1]) {
                case "delay" -> delayNanos = Long.parseLong(words[2]) * 1_000_000;
                case "throttle" -> {
                    throttles[0].bytesPerSecond = Long.parseLong(words[2]);
                    throttles[1].bytesPerSecond = Long.parseLong(words[2]);
                }
                case "cut" -> {
                    cut = true;
                    open.forEach(Proxy::close);
                }
                case "blackhole" -> hole(true);
                case "heal" -> {
                    cut = false;
                    hole(false);
                }
                case "hold" -> hold(Short.parseShort(words[2]), words[3].getBytes(StandardCharsets.UTF_8));
                case "held" -> {
                    return isHolding();
                }
                case "deliver" -> deliver();
                case "late" -> late(Long.parseLong(words[2]) * 1_000_000);
                default -> throw new IllegalArgumentException(words[1]);
            }
            return true;
        }

        private synchronized void hold(short key, byte[] text) {
            wantedKey = key;
            wantedString = ByteBuffer.allocate(2 + text.length).putShort((short) text.length).put(text).array();
            held = null;
        }

        private synchronized boolean isHolding() {
            return held != null;
        }

        /** Returns whether *request* is to be held, and holds it. The chunk must contain only this request. */
        synchronized boolean holds(ByteBuffer request) {
            int at = request.position();
            if (wantedString == null
                    || request.remaining() < 6
                    || request.getInt(at) + 4 != request.remaining()
                    || request.getShort(at + 4) != wantedKey) {
                return false;
            }
            byte[] bytes = new byte[request.remaining()];
            request.get(at, bytes);
            if (!contains(bytes, wantedString)) {
                return false;
            }
            wantedString = null;
            held = bytes;
            return true;
        }

        private synchronized void deliver() throws IOException {
            try (SocketChannel broker = SocketChannel.open(new InetSocketAddress("127.0.0.1", target))) {
                ByteBuffer request = ByteBuffer.wrap(held);
                while (request.hasRemaining()) {
                    broker.write(request);
                }
                broker.read(ByteBuffer.allocate(CHUNK));
            }
            held = null;
        }

        /** Stops forwarding on the current connections; the broker's side of each stays open until it has all data. */
        private void late(long nanos) {
            List<Connection> late = connections.stream().filter(one -> !one.isLate()).toList();
            long breaks = System.nanoTime() + LATE_NANOS;
            late.forEach(one -> one.due = breaks + nanos);
            thread("late " + listen, () -> {
                sleepUntil(breaks);
                late.forEach(one -> close(one.client));
            });
        }

        private synchronized void hole(boolean now) {
            hole = now;
            notifyAll();
        }

        synchronized void awaitNoHole() throws InterruptedException {
            while (hole) {
                wait();
            }
        }

        private void accept(SocketChannel client) {
            thread("connect " + listen, () -> {
                open.add(client); // before the check, because a cut in between would miss this connection
                if (cut) {
                    close(client);
                    open.remove(client);
                    return;
                }
                SocketChannel broker;
                try {
                    awaitNoHole();
                    broker = SocketChannel.open(new InetSocketAddress("127.0.0.1", target));
                } catch (IOException refused) {
                    close(client);
                    open.remove(client);
                    return;
                }
                client.setOption(StandardSocketOptions.TCP_NODELAY, true);
                broker.setOption(StandardSocketOptions.TCP_NODELAY, true);
                Connection connection = new Connection(client);
                connections.add(connection);
                new Direction(this, connection, client, broker, throttles[0], true).start();
                new Direction(this, connection, broker, client, throttles[1], false).start();
                if (cut) {
                    close(client);
                    close(broker);
                }
            });
        }
    }

    /** A client's connection; *due* is the time at which the broker gets data in flight, or 0 for at once. */
    private static final class Connection {
        final SocketChannel client;
        volatile long due;

        Connection(SocketChannel client) {
            this.client = client;
        }

        boolean isLate() {
            return due != 0;
        }
    }

    /** A rate that all connections of a route share in one direction. */
    private static final class Throttle {
        volatile long bytesPerSecond;
        private long free = System.nanoTime();

        void pass(int bytes) {
            long rate = bytesPerSecond;
            if (rate <= 0) {
                return;
            }
            long mine;
            synchronized (this) {
                free = Math.max(free, System.nanoTime() - CATCH_UP_NANOS) + bytes * 1_000_000_000L / rate;
                mine = free;
            }
            sleepUntil(mine);
        }
    }

    private record Chunk(ByteBuffer bytes, long due) {}

    /** One direction of one connection: a reader adds timestamps to chunks, a writer sends each when it is due. */
    private static final class Direction {
        private final Route route;
        private final Connection connection;
        private final SocketChannel from;
        private final SocketChannel to;
        private final Throttle throttle;
        private final boolean hasRequests;
        private final ArrayDeque<Chunk> queue = new ArrayDeque<>(); // this and the next three: guarded by this
        private final ArrayDeque<ByteBuffer> pool = new ArrayDeque<>();
        private long queued;
        private boolean ended;

        Direction(
                Route route,
                Connection connection,
                SocketChannel from,
                SocketChannel to,
                Throttle throttle,
                boolean hasRequests) {
            this.route = route;
            this.connection = connection;
            this.from = from;
            this.to = to;
            this.throttle = throttle;
            this.hasRequests = hasRequests;
            route.open.add(to);
        }

        void start() {
            thread("read " + route.listen, this::read);
            thread("write " + route.listen, this::write);
        }

        private void read() throws InterruptedException {
            try {
                while (true) {
                    route.awaitNoHole(); // the sender's buffers fill up, as with a real network
                    ByteBuffer buffer = buffer();
                    if (from.read(buffer) < 0) {
                        break;
                    }
                    long due = System.nanoTime() + route.delayNanos;
                    buffer.flip();
                    if (buffer.remaining() < COPY_BELOW) {
                        ByteBuffer copy = ByteBuffer.allocate(buffer.remaining()).put(buffer).flip();
                        recycle(buffer);
                        buffer = copy;
                    }
                    put(new Chunk(buffer, due));
                }
            } catch (IOException broken) {
                if (!isLateRequests()) {
                    close(to);
                }
            } finally {
                end();
            }
        }

        private void write() throws InterruptedException {
            try {
                for (Chunk chunk = take(); chunk != null; chunk = take()) {
                    sleepUntil(chunk.due);
                    throttle.pass(chunk.bytes.remaining());
                    route.awaitNoHole();
                    if (hasRequests && route.holds(chunk.bytes)) {
                        throw new IOException("a request is held");
                    }
                    int size = chunk.bytes.remaining();
                    if (isLateRequests()) {
                        sleepUntil(connection.due);
                    }
                    while (chunk.bytes.hasRemaining() && (hasRequests || !connection.isLate())) {
                        to.write(chunk.bytes);
                    }
                    done(chunk, size);
                }
                to.shutdownOutput();
                if (isLateRequests()) {
                    return; // the broker reads all data, responds and closes
                }
            } catch (IOException broken) {
                close(from);
                close(to);
            }
            // The other direction may still forward data; the last one to end closes both.
            if (!to.isOpen() || !from.isOpen() || from.socket().isOutputShutdown()) {
                close(from);
                close(to);
                route.open.remove(from);
                route.open.remove(to);
                route.connections.remove(connection);
            }
        }

        private boolean isLateRequests() {
            return hasRequests && connection.isLate();
        }

        private synchronized void put(Chunk chunk) throws InterruptedException {
            while (queued >= QUEUE_BYTES_MAX && to.isOpen()) {
                wait(1000);
            }
            queue.add(chunk);
            queued += chunk.bytes.remaining();
            notifyAll();
        }

        private synchronized Chunk take() throws InterruptedException {
            while (queue.isEmpty() && !ended) {
                wait();
            }
            return queue.poll();
        }

        private synchronized void done(Chunk chunk, int size) {
            queued -= size;
            recycle(chunk.bytes);
            notifyAll();
        }

        private synchronized void end() {
            ended = true;
            notifyAll();
        }

        private synchronized ByteBuffer buffer() {
            ByteBuffer buffer = pool.poll();
            return buffer == null ? ByteBuffer.allocateDirect(CHUNK) : buffer;
        }

        private synchronized void recycle(ByteBuffer buffer) {
            if (buffer.isDirect() && pool.size() < POOLED_MAX) {
                pool.push(buffer.clear());
            }
        }
    }

    private interface Work {
        void run() throws IOException, InterruptedException;
    }

    private static void thread(String name, Work work) {
        Thread thread = new Thread(null, () -> {
            try {
                work.run();
            } catch (IOException | InterruptedException error) {
                System.err.println(name + ": " + error);
            }
        }, name, 256 << 10);
        thread.setDaemon(true);
        thread.start();
    }

    private static boolean contains(byte[] bytes, byte[] part) {
        for (int at = 0; at + part.length <= bytes.length; at++) {
            if (Arrays.equals(bytes, at, at + part.length, part, 0, part.length)) {
                return true;
            }
        }
        return false;
    }

    private static void sleepUntil(long due) {
        for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }

    private static void close(SocketChannel channel) {
        try {
            channel.close();
        } catch (IOException ignored) {
            // the other side has closed it at the same time
        }
    }
}
