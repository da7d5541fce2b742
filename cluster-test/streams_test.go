package clustertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"

	"github.com/barque/barque/internal/await"
)

// pace is the time between two reads of slowReader, and part the size of each: 5 MB a second.
const (
	pace = 10 * time.Millisecond
	part = 50_000
)

// slowReader counts the bytes that it reads, at its pace.
type slowReader struct {
	n    int
	rest int
}

func (r *slowReader) Write(p []byte) (int, error) {
	r.n += len(p)
	for r.rest += len(p); r.rest >= part; r.rest -= part {
		<-time.After(pace) // brief: the pace of a slow reader
	}
	return len(p), nil
}

func (s *Space) config(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// TestSlowStreams: a reader of a command's output that is slower than the command gets all of it,
// and so does a command that is slow to read its input.
func TestSlowStreams(t *testing.T) {
	s := newSpace(t)
	s.K("run", "big", "--image=busybox:1.36", "--command", "--", "sleep", "1000000")
	s.WaitReady("big")
	config := s.config(t)
	const much = 40_000_000
	for _, way := range []string{"SPDY", "WebSocket"} {
		run := func(command string, stdin io.Reader, stdout io.Writer) error {
			t.Helper()
			location := s.Client.CoreV1().RESTClient().Post().Namespace(s.Namespace).Resource("pods").Name(
				"big").SubResource("exec").
				VersionedParams(
					&corev1.PodExecOptions{Command: []string{"sh", "-c", command}, Stdin: stdin != nil, Stdout: true},
					scheme.ParameterCodec).URL()
			executor, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, location)
			if way == "WebSocket" {
				executor, err = remotecommand.NewWebSocketExecutor(config, http.MethodGet, location.String())
			}
			if err != nil {
				t.Fatal(err)
			}
			return executor.StreamWithContext(await.Context(t),
				remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout})
		}
		t.Run("output over "+way, func(t *testing.T) {
			for range 3 {
				reader := &slowReader{}
				if err := run(fmt.Sprintf("head -c %d /dev/zero", much), nil, reader); err != nil || reader.n != much {
					t.Errorf("read %d bytes of %d: %v", reader.n, much, err)
				}
			}
		})
		t.Run("input over "+way, func(t *testing.T) {
			var said bytes.Buffer
			err := run("sleep 6; wc -c", io.LimitReader(zeros{}, much), &said)
			if err != nil || strings.TrimSpace(said.String()) != strconv.Itoa(much) {
				t.Errorf("the container has read %q of %d bytes: %v", &said, much, err)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestPortForwardSessions: a connection that fails, because no process listens or the pod resets
// it, ends alone, and a client may stop to send before it has its answer.
func TestPortForwardSessions(t *testing.T) {
	s := newSpace(t)
	// 7000 answers some seconds after the client's end. Nothing listens on 7001.
	s.K("run", "slow", "--image=busybox:1.36", "--command", "--", "nc", "-ll", "-p", "7000", "-e", "sh", "-c",
		"wc -c; sleep 3; echo late")
	s.WaitReady("slow")
	config := s.config(t)
	location := s.Client.CoreV1().RESTClient().Post().Namespace(s.Namespace).Resource("pods").Name("slow").SubResource(
		"portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	up := make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(
		spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, location),
		[]string{"127.0.0.1"}, []string{"0:7000", "0:7001"}, ctx.Done(), up, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }() // ends with ctx
	select {
	case <-up:
	case err := <-ended:
		t.Fatal(err)
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	connect := func(remote uint16) *net.TCPConn {
		t.Helper()
		for _, port := range ports {
			if port.Remote == remote {
				conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port.Local))))
				if err != nil {
					t.Fatal(err)
				}
				return conn.(*net.TCPConn)
			}
		}
		t.Fatalf("port %d is not forwarded", remote)
		return nil
	}
	for range 3 {
		conn := connect(7001)
		if got, err := io.ReadAll(conn); len(got) > 0 || err != nil {
			t.Errorf("a port without a listener gave %q, %v", got, err)
		}
		conn.Close()
	}
	// a pod is ready before it listens
	Eventually(s, deadline, "an answer after the client's end", func(context.Context) error {
		conn := connect(7000)
		defer conn.Close()
		_, err := io.WriteString(conn, "hello")
		if err = errors.Join(err, conn.CloseWrite()); err != nil {
			return err
		}
		if got, err := io.ReadAll(conn); err != nil || string(got) != "5\nlate\n" {
			return fmt.Errorf("got %q, %w", got, err)
		}
		return nil
	})
	select {
	case err := <-ended:
		t.Errorf("the session has ended: %v", err)
	default:
	}
}
