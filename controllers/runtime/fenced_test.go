package runtime

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// termHeader is the name of the header that carries the term.
const termHeader = "Leader-Term"

// A leader's client must say its term with every request, or nothing fences its writes.
func TestFencedClientsSayTheirTerm(t *testing.T) {
	var got string
	config := Fenced(t.Context(), 7, termHeader,
		&rest.Config{Host: "http://127.0.0.1:1", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			got = r.Header.Get(termHeader)
			return nil, errors.New("enough")
		})})
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:1/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := transport.RoundTrip(request); err == nil {
		t.Fatal("the request went out")
	}
	if got != "7" || request.Header.Get(termHeader) != "" {
		t.Fatalf("sent the term %q; the caller's request has %q", got, request.Header.Get(termHeader))
	}
}

// term counts the requests that wait for the end of a term.
type term struct {
	context.Context
	waited, waiting atomic.Int64
}

// Value hides the context within, or the function below would not be asked.
func (c *term) Value(any) any { return nil }

func (c *term) AfterFunc(f func()) func() bool {
	c.waited.Add(1)
	c.waiting.Add(1)
	stop := context.AfterFunc(c.Context, f)
	return func() bool { c.waiting.Add(-1); return stop() }
}

// TestRequestsEndWithTheTerm has an API that does not answer, or not to the end, as one has whose
// store has just lost its leader. What libraries ask of it with a context that never ends ends with
// the term all the same.
func TestRequestsEndWithTheTerm(t *testing.T) {
	for name, c := range map[string]struct {
		begun string // what it answers before it stops to
		call  func(kubernetes.Interface) error
	}{
		"get": {"", func(k kubernetes.Interface) error {
			_, err := k.RbacV1().ClusterRoles().Get(context.Background(), "a", metav1.GetOptions{})
			return err
		}},
		"create": {"", func(k kubernetes.Interface) error {
			_, err := k.CoreV1().Namespaces().Create(context.Background(), &corev1.Namespace{}, metav1.CreateOptions{})
			return err
		}},
		"list": {`{"items":[`, func(k kubernetes.Interface) error {
			_, err := k.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
			return err
		}},
		"discovery": {"", func(k kubernetes.Interface) error {
			_, err := k.Discovery().ServerPreferredResources()
			return err
		}},
		"watch": {"{", func(k kubernetes.Interface) error {
			w, err := k.CoreV1().Pods("").Watch(context.Background(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for range w.ResultChan() { // the error, at its end
			}
			return errors.New("the watch has ended")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan struct{}, 1)
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.ReadAll(r.Body); err != nil { // without it the end of the connection is not seen
					return
				}
				if c.begun != "" {
					w.Header().Set("Content-Type", "application/json")
					_, _ = io.WriteString(w, c.begun)
					_ = http.NewResponseController(w).Flush()
				}
				select {
				case asked <- struct{}{}:
				default:
				}
				<-r.Context().Done()
			}))
			defer api.Close()
			defer api.CloseClientConnections() // or a call that goes on would keep it open
			lead, depose := context.WithCancel(t.Context())
			defer depose()
			client, err := kubernetes.NewForConfig(Fenced(lead, 7, termHeader, &rest.Config{Host: api.URL, QPS: -1}))
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- c.call(client) }()
			select {
			case <-asked:
			case err := <-done:
				t.Fatalf("it ended before its term: %v", err)
			}
			depose()
			select {
			case err := <-done:
				if err == nil {
					t.Error("no error, and there was no answer")
				}
			case <-time.After(time.Minute):
				t.Error("it goes on after the end of its term")
			}
		})
	}
}

// A request that is refused for now is not tried again by client-go when nothing else could end the
// wait before that.
func TestEndlessRequestsDoNotWaitForAnotherTry(t *testing.T) {
	var asked atomic.Int64
	ctx, enough := context.WithTimeout(t.Context(), time.Minute)
	defer enough()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 3 {
			enough()
		}
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer api.Close()
	client, err := kubernetes.NewForConfig(Fenced(t.Context(), 7, termHeader, &rest.Config{Host: api.URL, QPS: -1}))
	if err != nil {
		t.Fatal(err)
	}
	get := func(ctx context.Context) int64 {
		before := asked.Load()
		if _, err := client.CoreV1().Namespaces().Get(ctx, "a", metav1.GetOptions{}); err == nil {
			t.Error("no error")
		}
		return asked.Load() - before
	}
	if n := get(context.Background()); n != 1 {
		t.Errorf("with a context that never ends: asked %d times", n)
	}
	if n := get(ctx); n != 2 {
		t.Errorf("with one that ends: asked %d times", n)
	}
}

// A term may last for months: a request that has ended leaves nothing with it.
func TestEndedRequestsLeaveTheTerm(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" {
			panic(http.ErrAbortHandler) // no answer
		}
		_, _ = io.WriteString(w, `{"gitVersion":"v1.0.0"}`)
	}))
	defer api.Close()
	lead := &term{Context: t.Context()}
	client, err := kubernetes.NewForConfig(Fenced(lead, 7, termHeader, &rest.Config{Host: api.URL, QPS: -1}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Discovery().ServerVersion(); err != nil {
		t.Error(err)
	}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{},
		metav1.CreateOptions{}); err == nil {
		t.Error("there was an answer")
	}
	if all, n := lead.waited.Load(), lead.waiting.Load(); all < 2 || n != 0 {
		t.Errorf("%d of %d requests wait for the end of the term", n, all)
	}
}
