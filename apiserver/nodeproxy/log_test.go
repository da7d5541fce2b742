package nodeproxy

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes/scheme"
)

// readLog gets a log as a client would, without the API machinery around it.
func readLog(ctx context.Context, p *Proxy, pod string, opts *corev1.PodLogOptions) (string, error) {
	object, err := p.PodLog().(rest.GetterWithOptions).Get(inNamespace(ctx), pod, opts)
	if err != nil {
		return "", err
	}
	stream, _, _, err := object.(rest.ResourceStreamer).InputStream(ctx, "v1", "")
	if err != nil || stream == nil {
		return "", err
	}
	defer stream.Close()
	text, err := io.ReadAll(stream)
	return string(text), err
}

func p[T any](v T) *T { return &v }

func TestLogRequest(t *testing.T) {
	tests := []struct {
		name string
		opts corev1.PodLogOptions
		want string
	}{
		{"plain", corev1.PodLogOptions{}, "/containerLogs/ns/pod/main"},
		{"container", corev1.PodLogOptions{Container: "main"}, "/containerLogs/ns/pod/main"},
		{"flags", corev1.PodLogOptions{Follow: true, Previous: true, Timestamps: true},
			"/containerLogs/ns/pod/main?follow=true&previous=true&timestamps=true"},
		{"numbers", corev1.PodLogOptions{TailLines: p(int64(0)), LimitBytes: p(int64(7)), SinceSeconds: p(int64(60))},
			"/containerLogs/ns/pod/main?limitBytes=7&sinceSeconds=60&tailLines=0"},
		{"time", corev1.PodLogOptions{SinceTime: p(metav1.Unix(0, 0).Rfc3339Copy())},
			"/containerLogs/ns/pod/main?sinceTime=" + "1970-01-01T00%3A00%3A00Z"},
		{"stream", corev1.PodLogOptions{Stream: p("Stderr")}, "/containerLogs/ns/pod/main?stream=Stderr"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.opts.SinceTime != nil {
				tt.opts.SinceTime.Time = tt.opts.SinceTime.UTC()
			}
			proxy := newProxy(t, newCluster(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, r.URL.RequestURI())
			}))
			if got, err := readLog(t.Context(), proxy, "pod", &tt.opts); err != nil || got != tt.want {
				t.Errorf("the kubelet was asked for %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestLogOptionsAreValidated(t *testing.T) {
	proxy := newProxy(t, newCluster(), http.NotFoundHandler())
	for name, opts := range map[string]corev1.PodLogOptions{
		"tailLines":    {TailLines: p(int64(-1))},
		"limitBytes":   {LimitBytes: p(int64(0))},
		"sinceSeconds": {SinceSeconds: p(int64(0))},
		"both":         {SinceSeconds: p(int64(1)), SinceTime: p(metav1.Now())},
		"stream":       {Stream: p("Stdin")},
		"stream tail":  {Stream: p("Stdout"), TailLines: p(int64(1))},
	} {
		if _, err := readLog(t.Context(), proxy, "pod", &opts); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want 422", name, err)
		}
	}
}

func TestLogContainer(t *testing.T) {
	c := newCluster()
	several := c.pods["pod"].DeepCopy()
	several.Name = "several"
	several.Spec.Containers = append(several.Spec.Containers, corev1.Container{Name: "side"})
	several.Spec.InitContainers = []corev1.Container{{Name: "init"}}
	several.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
	c.pods["several"] = several
	proxy := newProxy(t, c,
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }))
	for _, name := range []string{"main", "side", "init", "debug"} {
		if got, err := readLog(t.Context(), proxy, "several", &corev1.PodLogOptions{Container: name}); err != nil ||
			got != "/containerLogs/ns/several/"+name {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	_, err := readLog(t.Context(), proxy, "several", &corev1.PodLogOptions{})
	if !apierrors.IsBadRequest(err) ||
		!contains(err,
			"choose one of: [main side] or one of the init containers: [init] or one of the ephemeral containers: [debug]") {
		t.Errorf("no container named: %v", err)
	}
	if _, err := readLog(t.Context(), proxy, "several",
		&corev1.PodLogOptions{Container: "none"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a container that does not exist: %v", err)
	}
}

func TestLogErrors(t *testing.T) {
	c := newCluster()
	unbound := c.pods["pod"].DeepCopy()
	unbound.Spec.NodeName = ""
	lost := c.pods["pod"].DeepCopy()
	lost.Spec.NodeName = "gone"
	c.pods["unbound"], c.pods["lost"] = unbound, lost
	proxy := newProxy(t, c, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "previous terminated container \"main\" not found", http.StatusBadRequest)
	}))
	if got, err := readLog(t.Context(), proxy, "unbound", &corev1.PodLogOptions{}); got != "" || err != nil {
		t.Errorf("a pod without a node has the log %q, %v", got, err)
	}
	if _, err := readLog(t.Context(), proxy, "none", &corev1.PodLogOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("no such pod: %v", err)
	}
	if _, err := readLog(t.Context(), proxy, "lost", &corev1.PodLogOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("no such node: %v", err)
	}
	if _, err := readLog(t.Context(), proxy, "pod", &corev1.PodLogOptions{}); !apierrors.IsBadRequest(err) ||
		!contains(err, "not found") {
		t.Errorf("the kubelet's refusal became %v", err)
	}
}

// TestKubeletMustBeWhoItSays: without a certificate for the node's address it gets no request,
// unless the client does not care for the logs' origin.
func TestKubeletMustBeWhoItSays(t *testing.T) {
	proxy := newProxy(t, newCluster(),
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "log") }),
		"192.0.2.99")
	if got, err := readLog(t.Context(), proxy, "pod", &corev1.PodLogOptions{}); err == nil {
		t.Errorf("read %q from a kubelet with another's certificate", got)
	}
	if got, err := readLog(t.Context(), proxy, "pod",
		&corev1.PodLogOptions{InsecureSkipTLSVerifyBackend: true}); err != nil || got != "log" {
		t.Errorf("read %q, %v with insecureSkipTLSVerifyBackend", got, err)
	}
}

// TestLogFollows: lines come when they are written, and the kubelet's request ends with the
// client's.
func TestLogFollows(t *testing.T) {
	next, ended := make(chan string), make(chan struct{})
	proxy := newProxy(t, newCluster(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		for {
			select {
			case line := <-next:
				_, _ = io.WriteString(w, line)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	object, err := proxy.PodLog().(rest.GetterWithOptions).Get(inNamespace(ctx), "pod",
		&corev1.PodLogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	first := make(chan error, 1)
	go func() { // ends when the kubelet has taken the line
		select {
		case next <- "one\n":
		case <-ctx.Done():
		}
		first <- ctx.Err()
	}()
	stream, flush, contentType, err := object.(rest.ResourceStreamer).InputStream(ctx, "v1", "")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !flush || contentType != "text/plain" {
		t.Errorf("flush is %v and the content type %q", flush, contentType)
	}
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 4)
	if _, err := io.ReadFull(stream, line); err != nil || string(line) != "one\n" {
		t.Fatalf("read %q, %v", line, err)
	}
	cancel()
	<-ended
}

// TestABrokenLogIsNoWholeOne: a client reads all bytes of a log, or an error where the kubelet's
// response is cut. The responses of both protocols are broken off.
func TestABrokenLogIsNoWholeOne(t *testing.T) {
	const text = "one\ntwo\n"
	for name, follow := range map[string]bool{"once": false, "followed": true} {
		for _, cut := range []bool{false, true} {
			proxy := newProxy(t, newCluster(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, text)
				w.(http.Flusher).Flush()
				if cut {
					panic(http.ErrAbortHandler) // as the connection to a node that is lost
				}
			}))
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				object, err := proxy.PodLog().(rest.GetterWithOptions).Get(inNamespace(r.Context()), "pod",
					&corev1.PodLogOptions{Follow: follow})
				if err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
					return
				}
				responsewriters.StreamObject(http.StatusOK, corev1.SchemeGroupVersion, scheme.Codecs,
					object.(rest.ResourceStreamer), w, r)
			}))
			server.EnableHTTP2 = true
			server.StartTLS()
			for _, http2 := range []bool{false, true} {
				client := server.Client()
				client.Transport.(*http.Transport).ForceAttemptHTTP2 = http2
				answer, err := client.Get(server.URL)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(answer.Body)
				answer.Body.Close()
				if string(got) != text || (err != nil) != cut {
					t.Errorf("%s, HTTP/2 %v, cut %v: the client has read %q, %v", name, http2, cut, got, err)
				}
			}
			server.Close()
		}
	}
}
