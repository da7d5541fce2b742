package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

var k9sItself = workshop.Source{Pkg: ".", Tags: "netgo", Ldflags: "-X github.com/derailed/k9s/cmd.version=v0.50.16"}

// k9s runs on this machine, in a terminal.
var k9s = program{
	name: "k9s", module: "github.com/derailed/k9s", version: "v0.50.16",
	scenario: "in a terminal it shows the ConfigMaps of a namespace, and one that is made while it runs, and ends when `:q` is typed",
	tools:    []workshop.Source{k9sItself},
	install: func(ctx context.Context, s *site) error {
		// Nothing on the Internet is asked for its latest release.
		if err := os.WriteFile(filepath.Join(s.scratch, "config.yaml"), []byte("k9s: {skipLatestRevCheck: true}\n"),
			0o644); err != nil {
			return err
		}
		return s.apply(ctx, namespaceNamed("shown"))
	},
	fact: func(ctx context.Context, s *site, r round) error {
		file, err := s.workshop.Binary(ctx, s.program.order(), k9sItself)
		if err != nil {
			return err
		}
		return s.until(ctx, "the screen", func(ctx context.Context) error {
			return s.k9s(ctx, file, string(r))
		})
	},
}

// screenLimit bounds one run of k9s: the leader may die meanwhile.
const screenLimit = time.Minute

// k9s runs once. A ConfigMap is made when the screen shows those of before.
func (s *site) k9s(ctx context.Context, file, name string) error {
	if _, err := s.kubectl(ctx, "delete", "configmap", "-n", "shown", "made-"+name, "--ignore-not-found"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, screenLimit, fmt.Errorf("k9s has not shown it within %s", screenLimit))
	defer cancel()
	master, slave, err := clustertest.Terminal()
	if err != nil {
		return err
	}
	defer master.Close()
	cmd := exec.CommandContext(ctx, file, "--command", "configmaps", "--namespace", "shown", "--headless", "--logoless",
		"--readonly")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig(), "HOME="+s.scratch, "K9S_CONFIG_DIR="+s.scratch,
		"K9S_LOGS_DIR="+s.scratch, "TERM=xterm-256color")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	slave.Close()
	if err != nil {
		return err
	}
	var shown screen
	go func() { _, _ = io.Copy(&shown, master) }() // ends with the terminal
	shows := func(text string) error {
		return clustertest.Poll(ctx, screenLimit, func(context.Context) error { return shown.has(text) })
	}
	err = shows("kube-root-ca.crt")
	if err == nil {
		_, err = s.kubectl(ctx, "create", "configmap", "-n", "shown", "made-"+name)
	}
	if err == nil {
		err = shows("made-" + name)
	}
	if err == nil {
		_, err = io.WriteString(master, ":q\r")
	}
	if err != nil {
		cancel() // ends it
		_ = cmd.Wait()
		return err
	}
	return cmd.Wait()
}

// screen is all that a terminal has shown.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) has(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !bytes.Contains(s.text.Bytes(), []byte(text)) {
		end := s.text.Bytes()
		return fmt.Errorf("the screen does not show %s, and ends with %q", text, end[max(0, len(end)-500):])
	}
	return nil
}
