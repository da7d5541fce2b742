package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"

	"github.com/barque/barque/cluster-test/sides"
)

// Watchers are a process of their own. In the process of the writers, each answer to a write would
// wait until thousands of goroutines have read their events: how fast the clients' own scheduler is
// would be measured.

// watchersVariable in the environment makes this program a process of watchers.
const watchersVariable = "BARQUE_APIBENCH_WATCHERS"

// opening is how many watches are opened at a time.
const opening = 16

// order is the first message to a process of watchers.
type order struct {
	Servers  []address
	Watches  int      // each has a connection of its own, and the next one of the servers
	Paths    []string // of the watches, by turns
	Encoding string
}

// address is a server, with the credentials to reach it, as PEM.
type address struct {
	URL                         string
	Authority, Certificate, Key []byte
}

// counts is the answer of a process of watchers, first when all watches are open, and then to
// each question.
type counts struct {
	Events int64 // that came to all of them together
	Ended  int   // watches that the server has ended
	Error  string
}

// watchers is a process of watchers, as its parent sees it.
type watchers struct {
	cmd     *exec.Cmd
	ask     io.WriteCloser
	answers *json.Decoder
}

// watch starts a process that has the watches of an order open, on the servers of the side.
func (l *load) watch(o order) (_ *watchers, err error) {
	for _, e := range l.Servers {
		a, err := addressOf(e)
		if err != nil {
			return nil, err
		}
		o.Servers = append(o.Servers, a)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &watchers{cmd: exec.Command(program)}
	w.cmd.Env = append(os.Environ(), watchersVariable+"=1")
	w.cmd.Stderr = os.Stderr
	if w.ask, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.answers = json.NewDecoder(out)
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	if err = json.NewEncoder(w.ask).Encode(o); err == nil {
		_, err = w.answer()
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("open %d watches: %w", o.Watches, err)
	}
	return w, nil
}

// count returns the counts so far.
func (w *watchers) count() (counts, error) {
	if _, err := io.WriteString(w.ask, "{}\n"); err != nil {
		return counts{}, err
	}
	return w.answer()
}

func (w *watchers) answer() (counts, error) {
	var n counts
	err := w.answers.Decode(&n)
	if err == nil && n.Error != "" {
		err = errors.New(n.Error)
	}
	return n, err
}

// close ends the process.
func (w *watchers) close() {
	_ = w.ask.Close()
	_ = w.cmd.Wait() // whatever its exit code is, the measurement is done
}

func addressOf(e sides.Endpoint) (address, error) {
	var certificate, key bytes.Buffer
	for _, der := range e.TLS.Certificates[0].Certificate {
		_ = pem.Encode(&certificate, &pem.Block{Type: "CERTIFICATE", Bytes: der}) // to memory
	}
	der, err := x509.MarshalPKCS8PrivateKey(e.TLS.Certificates[0].PrivateKey)
	_ = pem.Encode(&key, &pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return address{e.URL, e.Authority, certificate.Bytes(), key.Bytes()}, err
}

// endpoint is the reverse of addressOf, without processes.
func (a address) endpoint() (sides.Endpoint, error) {
	certificate, err := tls.X509KeyPair(a.Certificate, a.Key)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.Authority)
	return sides.Endpoint{
		URL: a.URL, TLS: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}},
		Authority: a.Authority,
	}, err
}

// watchIfAsked does not return in a process of watchers. That ends with its input.
func watchIfAsked() {
	if os.Getenv(watchersVariable) == "" {
		return
	}
	if err := serveWatches(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "apibench: watchers:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serveWatches carries out an order and answers questions, each of which is an empty object.
func serveWatches(in io.Reader, out io.Writer) error {
	var o order
	questions := json.NewDecoder(in)
	if err := questions.Decode(&o); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &watching{}
	defer w.all.Wait()
	defer cancel()
	err := w.openAll(ctx, o)
	if err := json.NewEncoder(out).Encode(w.counts(err)); err != nil {
		return err
	}
	for {
		if err := questions.Decode(&struct{}{}); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := json.NewEncoder(out).Encode(w.counts(nil)); err != nil {
			return err
		}
	}
}

// watching is the open watches of this process.
type watching struct {
	events, ended atomic.Int64
	all           sync.WaitGroup
}

func (w *watching) counts(err error) counts {
	n := counts{Events: w.events.Load(), Ended: int(w.ended.Load())}
	if err != nil {
		n.Error = err.Error()
	}
	return n
}

// openAll opens all watches of an order.
func (w *watching) openAll(ctx context.Context, o order) error {
	e := inProtobuf
	if o.Encoding == inJSON.name {
		e = inJSON
	}
	var servers []sides.Endpoint
	for _, a := range o.Servers {
		s, err := a.endpoint()
		if err != nil {
			return err
		}
		servers = append(servers, s)
	}
	failures := make([]error, opening)
	var opened sync.WaitGroup
	for first := range opening {
		opened.Go(func() {
			for i := first; i < o.Watches && failures[first] == nil; i += opening {
				s := servers[i%len(servers)]
				failures[first] = w.open(ctx, connection{s.Client(), s.URL}, o.Paths[i%len(o.Paths)], e)
			}
		})
	}
	opened.Wait()
	return errors.Join(failures...)
}

// open opens one watch. It ends with the context, which ends the answer.
func (w *watching) open(ctx context.Context, client connection, path string, e encoding) error {
	res, err := client.send(ctx, http.MethodGet, path, e.media+";stream=watch", nil)
	if err != nil {
		return err
	}
	w.all.Go(func() {
		defer res.Body.Close()
		_ = e.count(res.Body, &w.events) // it ends with an error in any case
		if ctx.Err() == nil {
			w.ended.Add(1)
		}
	})
	return nil
}
