package probes

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/barque/barque/kubelet/cri"
)

// Execer runs commands in containers.
type Execer interface {
	ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) (cri.ExecResult, error)
}

// maxBody bounds the part of an answer that is read, for messages.
const maxBody = 10 << 10

func (m *Manager) once(ctx context.Context, pod *v1.Pod, t Target, probe *v1.Probe) error {
	timeout := seconds(probe.TimeoutSeconds, 1)
	ctx, cancel := context.WithTimeout(ctx, timeout+time.Second)
	defer cancel()
	switch {
	case probe.Exec != nil:
		return probeExec(ctx, m.config.Exec, t.ID, probe.Exec.Command, timeout)
	case probe.HTTPGet != nil:
		return probeHTTP(ctx, probe.HTTPGet, t.Container, t.PodIP, timeout)
	case probe.TCPSocket != nil:
		port, err := Port(probe.TCPSocket.Port, t.Container)
		if err != nil {
			return err
		}
		return probeTCP(ctx, hostOr(probe.TCPSocket.Host, t.PodIP), port, timeout)
	case probe.GRPC != nil:
		return probeGRPC(ctx, t.PodIP, probe.GRPC, timeout)
	}
	return errors.New("the probe says nothing of how to probe")
}

func probeExec(ctx context.Context, exec Execer, id string, command []string, timeout time.Duration) error {
	// The runtime may return late or leave the command running; the deadline is ours as well.
	result, err := exec.ExecSync(ctx, id, command, timeout)
	if err != nil {
		return fmt.Errorf("command %q: %s", strings.Join(command, " "), cri.Message(err))
	}
	if result.ExitCode != 0 {
		out := strings.TrimSpace(string(result.Stdout) + string(result.Stderr))
		if len(out) > maxBody {
			out = out[:maxBody]
		}
		return errors.New(out)
	}
	return nil
}

// Port resolves a port that may be named after one of the container's own.
func Port(port intstr.IntOrString, c *v1.Container) (int, error) {
	n := port.IntValue()
	if port.Type == intstr.String {
		for _, p := range c.Ports {
			if p.Name == port.StrVal {
				n = int(p.ContainerPort)
			}
		}
	}
	if n <= 0 || n > 65535 {
		return 0, fmt.Errorf("container %s has no port %q", c.Name, port.String())
	}
	return n, nil
}

func hostOr(host, ip string) string {
	if host != "" {
		return host
	}
	return ip
}

func probeHTTP(ctx context.Context, get *v1.HTTPGetAction, c *v1.Container, ip string, timeout time.Duration) error {
	req, err := HTTPRequest(ctx, get, c, ip, "kube-probe/1.37")
	if err != nil {
		return err
	}
	client := httpClient(timeout)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return err
	}
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("HTTP probe failed with statuscode: %d %s", resp.StatusCode, bytes.TrimSpace(body))
	}
	return nil
}

// HTTPRequest makes the request that a probe or a lifecycle hook describes.
func HTTPRequest(ctx context.Context, get *v1.HTTPGetAction, c *v1.Container, ip, agent string) (*http.Request, error) {
	port, err := Port(get.Port, c)
	if err != nil {
		return nil, err
	}
	path, query, _ := strings.Cut(get.Path, "?")
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	u := url.URL{
		Scheme: strings.ToLower(string(get.Scheme)), Path: path, RawQuery: query,
		Host: net.JoinHostPort(hostOr(get.Host, ip), strconv.Itoa(port)),
	}
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", agent)
	req.Header.Set("Accept", "*/*")
	for _, h := range get.HTTPHeaders {
		if strings.EqualFold(h.Name, "Host") {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	return req, nil
}

// httpClient does not check certificates, as Kubernetes defines probes, does not keep connections,
// and is not led to another host.
func httpClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // probes are defined so
			DisableKeepAlives: true,
			Proxy:             nil,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Hostname() != via[0].URL.Hostname() || len(via) >= 10 {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
}

func probeTCP(ctx context.Context, host string, port int, timeout time.Duration) error {
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return conn.Close()
}

func probeGRPC(ctx context.Context, ip string, action *v1.GRPCAction, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(ip, strconv.Itoa(int(action.Port))),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent("kube-probe/1.37"),
		grpc.WithNoProxy())
	if err != nil {
		return err
	}
	defer conn.Close()
	service := ""
	if action.Service != nil {
		service = *action.Service
	}
	resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		return err
	}
	if resp.Status != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("service unhealthy (responded with %q)", resp.Status)
	}
	return nil
}

// Visit makes a lifecycle hook's request. Any response counts as success.
func Visit(req *http.Request) error {
	resp, err := httpClient(0).Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
