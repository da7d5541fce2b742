package clustertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// apiPort is where each server of a dev cluster serves the API, at its own address.
const apiPort = "6443"

// FailoverClient is a client that knows the addresses of all servers, as programs do that are
// configured with them: it stays with one until a call fails, and goes on to the next. It has
// connections of its own, and is for one goroutine.
type FailoverClient struct {
	// Timeout bounds each call; it is the client's, as people set it.
	Timeout time.Duration

	servers []failoverServer
	at      int
}

type failoverServer struct {
	url    string
	kube   kubernetes.Interface
	client *http.Client
}

// Process is a node in the output of `barque dev status`.
type Process struct {
	Name    string `json:"name"`
	Role    string `json:"role"`
	Address string `json:"address"`
	State   string `json:"state"` // running, paused, dead
	PID     int    `json:"pid"`
}

// Servers returns the servers' processes, in the order of their names.
func (c *Cluster) Servers(ctx context.Context) ([]Process, error) {
	r := c.DevResult(ctx, "status", "-o", "json")
	if r.Error != nil {
		return nil, r.Error
	}
	var status struct{ Nodes []Process }
	if err := json.Unmarshal([]byte(r.Out), &status); err != nil {
		return nil, fmt.Errorf("dev status: %w\n%s", err, r.Out)
	}
	return slices.DeleteFunc(status.Nodes, func(n Process) bool { return n.Role != "server" }), nil
}

// NewFailoverClient makes a client of these servers, that begins with the one at first, modulo
// their number.
func (c *Cluster) NewFailoverClient(servers []Process, first int, timeout time.Duration) (*FailoverClient, error) {
	m := &FailoverClient{Timeout: timeout, at: first % len(servers)}
	for _, s := range servers {
		config, err := clientcmd.BuildConfigFromFlags("https://"+net.JoinHostPort(s.Address, apiPort), c.Kubeconfig())
		if err != nil {
			return nil, err
		}
		config.QPS = -1
		config.Dial = (&net.Dialer{}).DialContext // client-go shares connections among clients that look alike
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			return nil, err
		}
		kube, err := kubernetes.NewForConfigAndClient(config, client)
		if err != nil {
			return nil, err
		}
		m.servers = append(m.servers, failoverServer{config.Host, kube, client})
	}
	return m, nil
}

// Close closes the idle connections.
func (m *FailoverClient) Close() {
	for _, s := range m.servers {
		s.client.CloseIdleConnections()
	}
}

// Client is client-go's, for the server of the moment.
func (m *FailoverClient) Client() kubernetes.Interface { return m.servers[m.at].kube }

// Move goes on to the next server.
func (m *FailoverClient) Move() { m.at = (m.at + 1) % len(m.servers) }

// Kube makes one call with client-go. When it fails, the next one goes to the next server.
func (m *FailoverClient) Kube(ctx context.Context, call func(context.Context, kubernetes.Interface) error) error {
	ctx, cancel := context.WithTimeout(ctx, m.Timeout) // brief: a call that hangs is tried at the next server
	defer cancel()
	s := m.servers[m.at]
	if err := call(ctx, s.kube); err != nil {
		m.Move()
		return fmt.Errorf("%s: %w", s.url, err)
	}
	return nil
}

// HTTP makes one call with net/http alone, and decodes the answer into the value unless that is
// nil. When it fails, or is answered with a status that asks for another try (429, and all from
// 500), the next one goes to the next server.
func (m *FailoverClient) HTTP(ctx context.Context, method, path string, body []byte, into any) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.Timeout) // brief: a call that hangs is tried at the next server
	defer cancel()
	response, err := m.open(ctx, method, path, body)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err == nil && into != nil && response.StatusCode < 300 {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		m.Move()
		return 0, fmt.Errorf("%s: %w", response.Request.URL, err)
	}
	return response.StatusCode, nil
}

// open makes a call and returns the answer as soon as it begins.
func (m *FailoverClient) open(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	s := m.servers[m.at]
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		m.Move()
		return nil, err
	}
	if response.StatusCode == http.StatusTooManyRequests || response.StatusCode >= 500 {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		response.Body.Close()
		m.Move()
		return nil, fmt.Errorf("%s: %s: %s", request.URL, response.Status, text)
	}
	return response, nil
}
