package oidc

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

func write(t testing.TB, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// eventually repeats try until it returns no error.
func eventually(t testing.TB, what string, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("timed out: %s: %v", what, err)
		case <-time.After(200 * time.Millisecond): // brief: the interval of a poll
		}
	}
}

// cluster is one of one server, which is a process of its own.
type cluster struct {
	t          testing.TB
	binary     string
	kubeconfig string
}

func startServer(t testing.TB, flags ...string) *cluster {
	t.Helper()
	s := &cluster{t: t, binary: os.Getenv("BARQUE_BIN")}
	if s.binary == "" {
		t.Fatal("BARQUE_BIN does not name Barque's binary: run `make test-oidc`")
	}
	dir := t.TempDir()
	s.kubeconfig = filepath.Join(dir, "admin.kubeconfig")
	ports := freePorts(t, 3)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command(s.binary,
		append(
			[]string{"server", "--data-dir", dir, "--name", "oidc", "--node-ip", "127.0.0.1", "--no-node",
				"--snapshot-schedule", "0",
				"--raft-disk-reserve", "0", "--api-port", ports[0], "--peer-port", ports[1], "--gossip-port", ports[2]},
			flags...)...)
	process.Stdout, process.Stderr = log, log
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = process.Wait(); close(ended) }() // ends with the process, which the clean-up stops
	t.Cleanup(func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(hang):
			_ = process.Process.Kill()
			t.Error("the server does not stop")
		}
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the end of the server's log:\n%s", text[max(0, len(text)-8_000):])
		}
		_ = log.Close()
	})
	eventually(t, "the server is ready, and has its accounts", func(context.Context) error {
		select {
		case <-ended:
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("the server has ended:\n%s", text)
		default:
		}
		if out, err := s.kubectl(s.kubeconfig)("get", "--raw", "/readyz"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		out, err := s.kubectl(s.kubeconfig)("get", "serviceaccount", "default")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return s
}

// freePorts are ports that nothing listened on a moment ago.
func freePorts(t testing.TB, n int) []string {
	t.Helper()
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	}
	return ports
}

// command runs a command, and returns its output, standard and errors.
type command func(args ...string) (string, error)

func (s *cluster) kubectl(kubeconfig string) command { return s.command(kubeconfig, "kubectl") }

func (s *cluster) command(kubeconfig string, first ...string) command {
	home := s.t.TempDir()
	return func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		cmd := exec.CommandContext(ctx, s.binary, append(first[:len(first):len(first)], args...)...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HOME="+home,
			"KUBECACHEDIR="+filepath.Join(home, "cache"))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		return out.String(), err
	}
}

// output runs a command of barque, and returns its standard output.
func (s *cluster) output(kubeconfig string, args ...string) (string, error) {
	cmd := exec.Command(s.binary, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return string(out), err
}

// prints is a try: the command succeeds, and prints a text.
func (c command) prints(text string, args ...string) func(context.Context) error {
	return func(context.Context) error {
		out, err := c(args...)
		if !strings.Contains(out, text) {
			return fmt.Errorf("%v: %q is missing in\n%s", err, text, out)
		}
		return nil
	}
}

// withToken returns a kubeconfig like the administrator's, with a token in place of a certificate.
func (s *cluster) withToken(token string) string {
	s.t.Helper()
	text, err := os.ReadFile(s.kubeconfig)
	if err != nil {
		s.t.Fatal(err)
	}
	without := regexp.MustCompile(`(?m)^    client-key-data:.*\n`).ReplaceAllString(string(text), "")
	with := regexp.MustCompile(`(?m)^    client-certificate-data:.*$`).ReplaceAllString(without, "    token: "+token)
	if !strings.Contains(with, token) {
		s.t.Fatalf("the kubeconfig has another form:\n%s", without)
	}
	return write(s.t, filepath.Join(s.t.TempDir(), "kubeconfig"), with)
}
