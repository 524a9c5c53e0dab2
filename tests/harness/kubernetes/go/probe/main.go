// Command probe is what the tests of a cluster run in pods: it answers over HTTP what a pod sees.
//
// /file?path=P shows a file, /fetch?url=U what another server answers, /hostname the pod's own name, /exit ends it.
package main

import (
	"io"
	"log"
	"net/http"
	"os"
	"time"
)

// Longer than a name takes that is not there yet: CoreDNS is asked for each domain of the search path.
const fetchTimeout = 5 * time.Second

func main() {
	client := http.Client{Timeout: fetchTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	http.HandleFunc("/file", func(answer http.ResponseWriter, asked *http.Request) {
		content, err := os.ReadFile(asked.URL.Query().Get("path"))
		respond(answer, content, err)
	})
	http.HandleFunc("/fetch", func(answer http.ResponseWriter, asked *http.Request) {
		found, err := client.Get(asked.URL.Query().Get("url"))
		if err != nil {
			respond(answer, nil, err)
			return
		}
		defer found.Body.Close()
		content, err := io.ReadAll(found.Body)
		respond(answer, content, err)
	})
	http.HandleFunc("/hostname", func(answer http.ResponseWriter, _ *http.Request) {
		name, err := os.Hostname()
		respond(answer, []byte(name), err)
	})
	http.HandleFunc("/exit", func(http.ResponseWriter, *http.Request) { os.Exit(3) })
	log.Print("probe listens on 8000")
	log.Fatal(http.ListenAndServe(":8000", nil))
}

func respond(answer http.ResponseWriter, content []byte, err error) {
	if err != nil {
		http.Error(answer, err.Error(), http.StatusBadGateway)
		return
	}
	answer.Write(content)
}
