package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// hang is the bound of a wait, which only a hang reaches.
const hang = 3 * time.Minute

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
		case <-time.After(50 * time.Millisecond): // brief: the interval of a poll
		}
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// server is a cluster of one server, a process of its own.
type server struct {
	t          testing.TB
	binary     string
	dir        string // its data
	args       []string
	kubeconfig string
	log        *os.File

	process *exec.Cmd
	ended   chan error
}

// startServer starts a cluster and waits until it has the objects of every cluster.
func startServer(t testing.TB, flags ...string) *server {
	t.Helper()
	binary := os.Getenv("BARQUE_BIN")
	if binary == "" {
		t.Fatal("BARQUE_BIN does not name Barque's binary: run `make test-clients`")
	}
	s := &server{t: t, binary: binary, dir: t.TempDir()}
	s.kubeconfig = filepath.Join(s.dir, "admin.kubeconfig")
	ports := freePorts(t, 3)
	s.args = append(
		[]string{"server", "--data-dir", s.dir, "--name", "clients", "--node-ip", "127.0.0.1", "--no-node",
			"--snapshot-schedule", "0",
			"--raft-disk-reserve", "0", "--api-port", ports[0], "--peer-port", ports[1], "--gossip-port", ports[2]},
		flags...)
	var err error
	if s.log, err = os.Create(filepath.Join(t.TempDir(), "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.stop(syscall.SIGTERM)
		if t.Failed() {
			text, _ := os.ReadFile(s.log.Name())
			t.Logf("the end of the server's log:\n%s", text[max(0, len(text)-10_000):])
		}
		_ = s.log.Close()
	})
	s.start()
	return s
}

// freePorts are ports that nothing listened on a moment ago, for TCP and UDP.
func freePorts(t testing.TB, n int) []string {
	t.Helper()
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		out = append(out, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return out
}

// start starts the process and waits until it serves.
func (s *server) start() {
	s.t.Helper()
	s.process = exec.Command(s.binary, s.args...)
	s.process.Stdout, s.process.Stderr = s.log, s.log
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	process, ended := s.process, make(chan error, 1)
	s.ended = ended
	go func() { ended <- process.Wait() }() // ends with the process, which stop sees to
	eventually(s.t, "the server is ready and has its namespaces and accounts", func(ctx context.Context) error {
		select {
		case err := <-ended:
			s.t.Fatalf("the server has ended: %v", err)
		default:
		}
		config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		if body, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
			return fmt.Errorf("%w: %s", err, body)
		}
		_, err = client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// stop ends the process with a signal and waits until it is gone.
func (s *server) stop(signal syscall.Signal) {
	s.t.Helper()
	if s.ended == nil {
		return
	}
	_ = s.process.Process.Signal(signal)
	select {
	case err := <-s.ended:
		var exit *exec.ExitError
		if signal == syscall.SIGTERM && err != nil && !errors.As(err, &exit) {
			s.t.Error(err)
		}
		if signal == syscall.SIGTERM && exit != nil {
			s.t.Errorf("the server ended with %v", err)
		}
	case <-time.After(hang):
		_ = s.process.Process.Kill()
		s.t.Error("the server does not stop")
	}
	s.ended = nil
}

// restart stops the server with the signal and starts it again.
func (s *server) restart(signal syscall.Signal) {
	s.t.Helper()
	s.stop(signal)
	s.start()
}

// config is that of an administrator, without a limit of its own.
func (s *server) config() *rest.Config {
	s.t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		s.t.Fatal(err)
	}
	c.QPS = -1
	return c
}

// kubectl runs a command of kubectl, and returns its output, standard and errors.
type kubectl func(stdin string, args ...string) (string, error)

// kubectls are the kubectl that Barque has in it and, if there is one, that on the PATH.
func (s *server) kubectls(t testing.TB) map[string]kubectl {
	t.Helper()
	all := map[string]kubectl{"barque kubectl": s.kubectl(t, s.binary, "kubectl")}
	if path, err := exec.LookPath("kubectl"); err == nil {
		all["kubectl"] = s.kubectl(t, path)
	} else {
		t.Log("not tested: no kubectl on the PATH")
	}
	return all
}

func (s *server) kubectl(t testing.TB, command ...string) kubectl {
	home := t.TempDir()
	return func(stdin string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		cmd := exec.CommandContext(ctx, command[0], append(command[1:len(command):len(command)], args...)...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig, "HOME="+home,
			"KUBECACHEDIR="+filepath.Join(home, "cache"), "KUBECTL_EXTERNAL_DIFF=")
		cmd.Stdin = strings.NewReader(stdin)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		return out.String(), err
	}
}
