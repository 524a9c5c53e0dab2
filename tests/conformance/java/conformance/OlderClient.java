package conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.connect.runtime.rest.entities.ConnectorStateInfo;

/**
 * Stands between the tests of Kafka before 4.1 and a worker. Statuses have a field {@code version} since then, Java's too,
 * and the REST client of older tests refuses fields that it does not know. That field is left out; nothing else is changed.
 *
 * <p>Older tests also ask a consumer for its position after one poll of half a second, too short for the first group of a
 * cluster, which waits for a coordinator. Java's worker has joined one before, in the tests' own JVM; here a consumer does.
 */
public final class OlderClient implements AutoCloseable {

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration JOINED = Duration.ofSeconds(60);

    private final HttpServer server;
    private final URI worker;
    private final HttpClient client = HttpClient.newHttpClient();

    public OlderClient(URI worker, Map<String, String> properties) throws IOException {
        this.worker = worker;
        joinGroup(properties);
        server = HttpServer.create(new InetSocketAddress(InetAddress.getByName("localhost"), 0), 0);
        server.createContext("/", this::pass);
        server.setExecutor(Executors.newCachedThreadPool(job -> {
            Thread thread = new Thread(job, "older-client");
            thread.setDaemon(true);
            return thread;
        }));
        server.start();
    }

    private static void joinGroup(Map<String, String> properties) {
        Map<String, Object> client = new HashMap<>();
        for (String key : ConsumerConfig.configNames())
            if (properties.containsKey(key)) client.put(key, properties.get(key));
        client.remove(ConsumerConfig.METRIC_REPORTER_CLASSES_CONFIG);
        client.put(ConsumerConfig.GROUP_ID_CONFIG, "older-client");
        client.put(ConsumerConfig.ALLOW_AUTO_CREATE_TOPICS_CONFIG, "false");
        var bytes = new ByteArrayDeserializer();
        long deadline = System.nanoTime() + JOINED.toNanos();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(client, bytes, bytes)) {
            consumer.subscribe(List.of("older-client"));
            while (consumer.groupMetadata().memberId().isEmpty() && System.nanoTime() < deadline)
                consumer.poll(Duration.ofMillis(100));
        }
    }

    /** Whether the tests' Kafka is older than the field. */
    public static boolean isNeeded() {
        for (var method : ConnectorStateInfo.AbstractState.class.getMethods())
            if (method.getName().equals("version")) return false;
        return true;
    }

    public URI url() {
        return URI.create("http://localhost:" + server.getAddress().getPort() + "/");
    }

    @Override
    public void close() {
        server.stop(0);
    }

    private void pass(HttpExchange exchange) throws IOException {
        try (exchange) {
            byte[] body = exchange.getRequestBody().readAllBytes();
            HttpRequest.Builder request = HttpRequest.newBuilder(worker.resolve(exchange.getRequestURI().toString()))
                .method(exchange.getRequestMethod(), HttpRequest.BodyPublishers.ofByteArray(body));
            for (String name : List.of("Content-Type", "Accept")) {
                String value = exchange.getRequestHeaders().getFirst(name);
                if (value != null) request.header(name, value);
            }
            HttpResponse<byte[]> response;
            try {
                response = client.send(request.build(), HttpResponse.BodyHandlers.ofByteArray());
            } catch (IOException | InterruptedException e) {
                exchange.sendResponseHeaders(502, -1);
                return;
            }
            byte[] answer = withoutVersions(response.body());
            response.headers().firstValue("Content-Type")
                .ifPresent(type -> exchange.getResponseHeaders().set("Content-Type", type));
            exchange.sendResponseHeaders(response.statusCode(), answer.length == 0 ? -1 : answer.length);
            if (answer.length > 0) exchange.getResponseBody().write(answer);
        }
    }

    private static byte[] withoutVersions(byte[] body) {
        JsonNode said;
        try {
            said = JSON.readTree(body);
            if (said == null || !said.path("connector").isObject() || !said.path("tasks").isArray()) return body;
            ((ObjectNode) said.get("connector")).remove("version");
            said.get("tasks").forEach(task -> ((ObjectNode) task).remove("version"));
            return JSON.writeValueAsBytes(said);
        } catch (IOException notJson) {
            return body;
        }
    }
}
