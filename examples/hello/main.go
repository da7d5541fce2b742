// Command hello is the web server of the built-in image barque.local/hello:1.
// It answers every path with the pod's name and address and the path, so that an answer shows its
// pod. /healthz answers 200 until the process is asked to end, then 503 while requests drain.
// /work/50ms keeps one CPU busy for 50 ms before the answer, at most 10 s, as a load for
// autoscalers.
//
// It listens on port 8080, or on the port in the environment variable PORT.
//
// With arguments it is no server, for the examples of Jobs and DaemonSets:
//
//	hello work 2s          keeps one CPU busy for 2 s, reports the end and exits
//	hello follow DIR       prints the lines that are added to the files *.log below DIR
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// drain is how long requests that are already running may take after SIGTERM.
const drain = 5 * time.Second

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()

	switch args := os.Args[1:]; {
	case len(args) == 0:
		return serve(ctx)
	case len(args) == 2 && args[0] == "work":
		busy, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		work(ctx, busy)
		fmt.Println(strings.TrimSpace("Worked for " + busy.String() + " " + os.Getenv("JOB_COMPLETION_INDEX")))
		return context.Cause(ctx)
	case len(args) == 2 && args[0] == "follow":
		return follow(ctx, args[1], os.Stdout)
	}
	return errors.New("want no arguments, work DURATION, or follow DIR")
}

func serve(ctx context.Context) error {
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("", port))
	if err != nil {
		return err
	}

	var ending atomic.Bool
	server := &http.Server{
		Handler:           handler(&ending),
		ReadHeaderTimeout: 10 * time.Second,
	}
	// Ended by Shutdown below, which makes Serve return; waited for through served.
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Printf("hello: listening on %s\n", listener.Addr())

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ending.Store(true)
	fmt.Println("hello: ending")
	limit, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	if err := server.Shutdown(limit); err != nil {
		return err
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// longest is how long one request may keep a CPU busy.
const longest = 10 * time.Second

// work keeps one CPU busy, until the client leaves at the latest.
func work(ctx context.Context, busy time.Duration) {
	for end := time.Now().Add(busy); time.Now().Before(end) && ctx.Err() == nil; {
		for range 10_000 {
			_ = time.Since(end)
		}
	}
}

func handler(ending *atomic.Bool) http.Handler {
	name, _ := os.Hostname() // in a pod the host name is the pod's name
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if ending.Load() {
			http.Error(w, "ending", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("/work/{time}", func(w http.ResponseWriter, r *http.Request) {
		busy, err := time.ParseDuration(r.PathValue("time"))
		if err != nil || busy < 0 || busy > longest {
			http.Error(w, "ask for /work/50ms, or another time up to "+longest.String(), http.StatusBadRequest)
			return
		}
		work(r.Context(), busy)
		fmt.Fprintf(w, "Worked for %s on %s\n", busy, name)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		local := "unknown"
		if addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			local = addr.String()
		}
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "Hello from %s\naddress: %s\nclient: %s\npath: %s\n", name, local, client, r.URL.Path)
	})
	return mux
}
