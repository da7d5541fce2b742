package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/internal/procstat"
)

const servers = 3

// side is the servers of one kind.
type side struct {
	name    string
	servers []endpoint
	restart func(ctx context.Context) (time.Duration, error) // of one server, until it is ready
	stop    func() error
}

// endpoint is a server.
type endpoint struct {
	url       string
	tls       *tls.Config
	processes func() []int
}

// client returns a client with a connection of its own.
func (e endpoint) client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: e.tls.Clone(), ForceAttemptHTTP2: true, DisableCompression: true,
	}}
}

func startUpstream(ctx context.Context, bin, work string) (*side, error) {
	c, err := kubeapiserver.Start(ctx, kubeapiserver.Options{Bin: bin, Work: work, Members: servers})
	if err != nil {
		return nil, err
	}
	s := &side{name: "kube-apiserver", stop: func() error { c.Stop(); return nil }}
	for _, server := range c.Servers {
		s.servers = append(s.servers, endpoint{
			url: server.URL, tls: &tls.Config{RootCAs: server.Roots, Certificates: []tls.Certificate{c.Client}},
			processes: server.Processes,
		})
	}
	s.restart = func(context.Context) (time.Duration, error) { return c.Servers[servers-1].Restart() }
	return s, nil
}

func startBarque(ctx context.Context) (_ *side, err error) {
	c, err := clustertest.Up(ctx, clustertest.Options{Servers: servers})
	if err != nil {
		if c != nil {
			err = errors.Join(err, c.Down())
		}
		return nil, err
	}
	s := &side{name: "Barque", stop: c.Down}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Down())
		}
	}()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.CAData)
	nodes, err := devNodes(ctx, c)
	if err != nil {
		return nil, err
	}
	for i, n := range nodes {
		s.servers = append(s.servers, endpoint{
			url: "https://" + n.Address + ":6443", tls: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}},
			processes: func() []int { return []int{nodes[i].PID} },
		})
	}
	last := s.servers[servers-1]
	s.restart = func(ctx context.Context) (time.Duration, error) {
		if err := c.KillNodes(ctx, nodes[servers-1].Name); err != nil {
			return 0, err
		}
		started := make(chan error, 1)
		// It ends with the command, which the context ends.
		go func() { started <- c.StartNode(ctx, nodes[servers-1].Name) }()
		client := last.client()
		err := kubeapiserver.Retry(ctx, nil, func() error { return kubeapiserver.Ready(ctx, client, last.url) })
		ready := uptime()
		if err := errors.Join(err, <-started); err != nil {
			return 0, err
		}
		if nodes, err = devNodes(ctx, c); err != nil {
			return 0, err
		}
		stat, err := procstat.Read(nodes[servers-1].PID)
		return ready - time.Duration(stat.Started)*time.Second/ticks, err
	}
	return s, nil
}

type devNode struct {
	Name, Address string
	PID           int
}

// devNodes returns the servers of a dev cluster.
func devNodes(ctx context.Context, c *clustertest.Cluster) ([]devNode, error) {
	r := c.DevResult(ctx, "status", "-o", "json")
	if r.Error != nil {
		return nil, r.Error
	}
	var status struct{ Nodes []devNode }
	if err := json.Unmarshal([]byte(r.Out), &status); err != nil {
		return nil, err
	}
	if len(status.Nodes) != servers {
		return nil, fmt.Errorf("%d servers run, not %d", len(status.Nodes), servers)
	}
	return status.Nodes, nil
}

// ticks is how many of the clock ticks of /proc make a second, on every Linux that Go runs on.
const ticks = 100

// uptime is the time since boot.
func uptime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // fails for clocks that do not exist
	return time.Duration(t.Nano())
}

// usage is what the processes of a side have used so far, and what they hold.
type usage struct {
	cpu       time.Duration
	anonymous float64 // MiB of memory that is not of files
}

// use adds up all processes of a side.
func (s *side) use() (total usage, err error) {
	for _, e := range s.servers {
		u, err := e.use()
		if err != nil {
			return total, err
		}
		total.cpu += u.cpu
		total.anonymous += u.anonymous
	}
	return total, nil
}

// use adds up the processes of a server.
func (e endpoint) use() (total usage, err error) {
	for _, pid := range e.processes() {
		u, err := processUse(pid)
		if err != nil {
			return total, err
		}
		total.cpu += u.cpu
		total.anonymous += u.anonymous
	}
	return total, nil
}

func processUse(pid int) (usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, err
	}
	u, err := parseCPU(stat)
	if err != nil {
		return u, fmt.Errorf("process %d: %w", pid, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	for line := range bytes.Lines(status) {
		if value, ok := bytes.CutPrefix(line, []byte("RssAnon:")); ok {
			kib, err := strconv.ParseFloat(strings.Fields(string(value))[0], 64)
			u.anonymous = kib / 1024
			return u, err
		}
	}
	return u, fmt.Errorf("process %d has no RssAnon", pid)
}

// parseCPU reads the times in user and kernel mode from /proc/PID/stat (proc_pid_stat(5)).
func parseCPU(stat []byte) (usage, error) {
	// The name of the program, in parentheses, may have anything in it.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return usage{}, errors.New("its stat is short")
	}
	var sum uint64
	for _, text := range fields[11:13] {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return usage{}, err
		}
		sum += n
	}
	return usage{cpu: time.Duration(sum) * time.Second / ticks}, nil
}
