// Command answers sends the same requests to upstream's kube-apiserver and to Barque's API server,
// and prints where their answers differ: in the status, the causes, the warnings or the object.
//
// The requests come from objects/: a valid object of each kind, variants of it by hand
// (objects/variants.yaml), and mutations of each of its fields. All but the objects' creation are
// dry runs, so that no request depends on another one.
//
// In the end, unless only some requests are sent, the OpenAPI documents of both are compared.
//
// Package kubeapiserver builds and runs kube-apiserver and etcd. Both servers listen on the
// loopback. It needs no root.
//
// It is not a test: it does not list the differences on purpose, which are known to its readers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/barque/barque/cluster-test/kubeapiserver"
)

func main() {
	var o options
	only := flag.String("only", "",
		"send only requests whose names match this regular expression, such as '^Pod create'")
	flag.StringVar(&o.bin, "bin", "bin/upstream", "directory that has, or gets, kube-apiserver and etcd")
	flag.IntVar(&o.show, "show", 3, "how many requests are shown of those that differ in the same way")
	flag.BoolVar(&o.texts, "texts", false, "show also where only the texts of causes differ")
	flag.Parse()
	klog.LogToStderr(false) // the log of the server in this process is no part of the report
	klog.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, *only); err != nil {
		fmt.Fprintln(os.Stderr, "answers:", err)
		os.Exit(1)
	}
}

type options struct {
	bin   string
	show  int
	texts bool
}

func run(ctx context.Context, o options, only string) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	kinds, err := readKinds()
	if err != nil {
		return err
	}
	if err := kubeapiserver.Build(ctx, o.bin, "kube-apiserver", "etcd"); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "barque-answers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	ours, err := startBarque(ctx, work)
	if err != nil {
		return fmt.Errorf("start Barque: %w", err)
	}
	defer ours.stop()
	theirs, err := startUpstream(ctx, o.bin, work)
	if err != nil {
		return fmt.Errorf("start kube-apiserver: %w", err)
	}
	defer theirs.stop()

	r := newReport(o)
	for i, k := range kinds {
		fmt.Fprintf(os.Stderr, "%s (%d of %d)\n", k.name, i+1, len(kinds))
		if err := lay(ctx, k, theirs, ours); err != nil {
			return err
		}
		for _, q := range k.requests() {
			if !wanted.MatchString(q.name) {
				continue
			}
			want, err := theirs.ask(ctx, q)
			silent := errors.Is(err, io.EOF) // its handler has panicked
			if err != nil && !silent {
				return fmt.Errorf("%s: kube-apiserver: %w", q.name, err)
			}
			got, err := ours.ask(ctx, q)
			if errors.Is(err, io.EOF) {
				got, err = &answer{message: "no answer: the connection was closed"}, nil
			}
			if err != nil {
				return fmt.Errorf("%s: Barque: %w", q.name, err)
			}
			if silent {
				r.unanswered = append(r.unanswered, fmt.Sprintf("%s (Barque: %s)", q.name, got.outcome()))
				continue
			}
			r.compare(q, want, got)
		}
	}
	r.print(os.Stdout)
	if only != "" {
		return nil
	}
	return compareDocuments(ctx, os.Stdout, theirs, ours, o.show)
}

// lay creates the object of a kind on both servers, for its updates.
func lay(ctx context.Context, k *kind, servers ...*server) error {
	for _, s := range servers {
		for _, q := range k.setUp() {
			a, err := s.ask(ctx, q)
			if err == nil && a.code >= 300 && a.code != 409 {
				err = fmt.Errorf("%d %s", a.code, a.message)
			}
			if err != nil {
				return fmt.Errorf("%s on %s: %w", q.name, s.name, err)
			}
		}
	}
	return nil
}
