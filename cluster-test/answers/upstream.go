package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// module is where the go.mod is that says which kube-apiserver and etcd are built.
const module = "cluster-test/answers/upstream"

// token is the bearer token of a member of system:masters, on both servers.
const token = "answers"

// serviceCIDR is the range of the addresses of services, on both servers.
const serviceCIDR = "10.43.0.0/16"

// build builds kube-apiserver and etcd into a directory that lacks them.
func build(ctx context.Context, bin string) error {
	// It is by its version that kube-apiserver knows what is deprecated.
	const version = "k8s.io/component-base/version"
	flags := fmt.Sprintf("-s -w -X %[1]s.gitVersion=v1.37.1 -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=37", version)
	for program, pkg := range map[string]string{"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver", "etcd": "go.etcd.io/etcd/server/v3"} {
		path, err := filepath.Abs(filepath.Join(bin, program))
		if err != nil {
			return err
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(os.Stderr, "building %s; kube-apiserver takes some minutes, once\n", program)
		cmd := exec.CommandContext(ctx, goCommand(), "build", "-ldflags", flags, "-o", path, pkg)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-trimpath -buildvcs=false")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s in %s: %w: %s; run this in the root of Barque's source", program, module, err, out)
		}
	}
	return nil
}

func goCommand() string {
	if g := os.Getenv("GO"); g != "" {
		return g
	}
	return "go"
}

// startUpstream starts etcd and a kube-apiserver over it, with upstream's defaults but for
// privileged containers, which it allows, as Barque does.
func startUpstream(ctx context.Context, bin, work string) (*server, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	tokens, key, err := secrets(work)
	if err != nil {
		return nil, err
	}
	store := "http://127.0.0.1:" + ports[0]
	peers := "http://127.0.0.1:" + ports[1]
	etcd, err := start(ctx, work, filepath.Join(bin, "etcd"), "--data-dir", filepath.Join(work, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", store, "--advertise-client-urls", store,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	if err != nil {
		return nil, err
	}
	certs := filepath.Join(work, "upstream-certs")
	api, err := start(ctx, work, filepath.Join(bin, "kube-apiserver"), "--etcd-servers", store,
		"--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", ports[2], "--cert-dir", certs,
		"--token-auth-file", tokens, "--authorization-mode", "RBAC", "--allow-privileged",
		"--service-cluster-ip-range", serviceCIDR, "--endpoint-reconciler-type", "none",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key, "--service-account-signing-key-file", key)
	if err != nil {
		etcd.stop()
		return nil, err
	}
	s := &server{name: "kube-apiserver", url: "https://127.0.0.1:" + ports[2], stop: func() { api.stop(); etcd.stop() }}
	err = api.await(ctx, func() error {
		pem, err := os.ReadFile(filepath.Join(certs, "apiserver.crt"))
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		s.client = newClient(roots)
		return s.ready(ctx)
	})
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// process is a program that runs, and what it says.
type process struct {
	name string
	stop func() // waits until the process has ended
	done chan struct{}
	log  string
}

func start(ctx context.Context, work, program string, args ...string) (*process, error) {
	p := &process{name: filepath.Base(program), done: make(chan struct{})}
	p.log = filepath.Join(work, p.name+".log")
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, errors.Join(err, log.Close())
	}
	// It ends with the process, which the context ends.
	go func() {
		_ = cmd.Wait()
		_ = log.Close()
		close(p.done)
	}()
	p.stop = func() { cancel(); <-p.done }
	return p, nil
}

// await repeats a check until it succeeds, or the process has ended.
func (p *process) await(ctx context.Context, check func() error) error {
	err := retry(ctx, p.done, check)
	if errors.Is(err, errEnded) {
		said, _ := os.ReadFile(p.log)
		return fmt.Errorf("%s has ended: %s", p.name, said[max(0, len(said)-2000):])
	}
	return err
}

var errEnded = errors.New("it has ended")

// retry repeats a check until it succeeds, or what it is about has ended. A nil channel never ends.
func retry(ctx context.Context, ended <-chan struct{}, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return errEnded
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w", err)
		case <-time.After(200 * time.Millisecond): // brief: the interval of a poll
		}
	}
}

func freePorts(n int) ([]string, error) {
	var ports []string
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close()
		ports = append(ports, strconv.Itoa(ln.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}

// ready asks a server whether it is, by all checks.
func (s *server) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/readyz", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", res.Status, &body)
	}
	return nil
}
