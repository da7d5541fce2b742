package inprocess

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
)

// serving is a Transport over a handler, as a client.
func serving(t *testing.T, handler http.HandlerFunc) (*http.Client, *Transport) {
	t.Helper()
	transport := New()
	transport.Serve(handler)
	t.Cleanup(transport.Close)
	return &http.Client{Transport: transport}, transport
}

func request(t *testing.T, ctx context.Context, method string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "https://10.0.0.1:6443/a%2Fb/c?d=e&f", body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

type secretKey struct{}

// The handler gets the fields that a server would have read from a connection, and nothing else.
func TestRequest(t *testing.T) {
	client, _ := serving(t, func(w http.ResponseWriter, r *http.Request) {
		if r.RequestURI != "/a%2Fb/c?d=e&f" || r.URL.Path != "/a/b/c" || r.URL.EscapedPath() != "/a%2Fb/c" ||
			r.URL.Host != "" || r.URL.Query().Get("d") != "e" {
			t.Errorf("%s, %+v", r.RequestURI, r.URL)
		}
		if r.Host != "10.0.0.1:6443" || r.RemoteAddr == "" || r.TLS == nil || r.Method != http.MethodPut ||
			!r.ProtoAtLeast(2, 0) {
			t.Errorf("%+v", r)
		}
		body, err := io.ReadAll(r.Body)
		if string(body) != "body" || err != nil || r.ContentLength != 4 || r.Header.Get("X-Client") != "yes" {
			t.Errorf("%q, %v, %d, %v", body, err, r.ContentLength, r.Header)
		}
		if r.Context().Value(secretKey{}) != nil {
			t.Error("the handler sees the client's context")
		}
		r.Header.Del("X-Client")
		w.Header().Set("X-Server", "before")
		w.WriteHeader(http.StatusTeapot)
		w.Header().Set("X-Server", "after")
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "answer")
	})
	r := request(t, context.WithValue(t.Context(), secretKey{}, 1), http.MethodPut, strings.NewReader("body"))
	r.Header.Set("X-Client", "yes")
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	if string(body) != "answer" || err != nil || answer.StatusCode != http.StatusTeapot ||
		answer.Status != "418 I'm a teapot" || answer.Header.Get("X-Server") != "before" {
		t.Errorf("%q, %v, %+v", body, err, answer)
	}
	if r.Header.Get("X-Client") != "yes" {
		t.Error("the handler has changed the client's header")
	}
	if err := answer.Body.Close(); err != nil {
		t.Error(err)
	}
}

func TestResponseOfNothing(t *testing.T) {
	client, _ := serving(t, func(_ http.ResponseWriter, r *http.Request) {
		if n, err := r.Body.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) || r.ContentLength != 0 {
			t.Errorf("the body of a request without one: %d, %v", n, err)
		}
	})
	answer, err := client.Do(request(t, t.Context(), http.MethodGet, nil))
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(answer.Body); len(body) != 0 || err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("%q, %v, %s", body, err, answer.Status)
	}
}

// A client reads the written part of a stream before the stream ends. The handler's stream ends
// when the client leaves.
func TestStream(t *testing.T) {
	for name, leave := range map[string]func(cancel context.CancelFunc, body io.Closer){
		"closes the body":     func(_ context.CancelFunc, body io.Closer) { _ = body.Close() },
		"cancels the context": func(cancel context.CancelFunc, _ io.Closer) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				more, ended := make(chan string), make(chan error, 1)
				client, _ := serving(t, func(w http.ResponseWriter, r *http.Request) {
					w.(http.Flusher).Flush()
					for {
						select {
						case text := <-more:
							_, _ = io.WriteString(w, text)
						case <-r.Context().Done():
							_, err := io.WriteString(w, "too late")
							ended <- err
							return
						}
					}
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				answer, err := client.Do(request(t, ctx, http.MethodGet, nil))
				if err != nil {
					t.Fatal(err)
				}
				for _, text := range []string{"one", "two"} {
					more <- text
					got := make([]byte, len(text))
					if _, err := io.ReadFull(answer.Body, got); err != nil || string(got) != text {
						t.Errorf("%q, %v", got, err)
					}
				}
				leave(cancel, answer.Body)
				if err := <-ended; err == nil {
					t.Error("the handler could write after the client had left")
				}
				if n, err := answer.Body.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, io.EOF) {
					t.Errorf("the client reads %d bytes, %v", n, err)
				}
			})
		})
	}
}

// A handler waits for a client that does not read, and nothing is lost.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pieces, size = 100, 5000
		written := 0
		client, _ := serving(t, func(w http.ResponseWriter, _ *http.Request) {
			for i := range pieces {
				if n, err := w.Write(bytes.Repeat([]byte{byte(i)}, size)); n != size || err != nil {
					t.Errorf("%d, %v", n, err)
				}
				written += size
			}
		})
		answer, err := client.Do(request(t, t.Context(), http.MethodGet, nil))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if written > room {
			t.Errorf("%d bytes were written before one was read", written)
		}
		got := make([]byte, 0, pieces*size)
		for buffer := make([]byte, 700); ; { // it never empties the response, until the end
			n, err := answer.Body.Read(buffer)
			got = append(got, buffer[:n]...)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if len(got) != pieces*size {
			t.Fatalf("%d bytes", len(got))
		}
		for i, b := range got {
			if int(b) != i/size {
				t.Fatalf("byte %d is of piece %d", i, b)
			}
		}
	})
}

// Before its server serves, a request waits; after the port was closed, it is refused.
func TestBeforeAndAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := New()
		client := &http.Client{Transport: transport}
		ctx, cancel := context.WithCancel(t.Context())
		failed, answered := make(chan error, 1), make(chan *http.Response, 1)
		go func() {
			_, err := client.Do(request(t, ctx, http.MethodGet, nil))
			failed <- err
		}()
		go func() {
			answer, err := client.Do(request(t, t.Context(), http.MethodGet, nil))
			if err != nil {
				t.Error(err)
			}
			answered <- answer
		}()
		synctest.Wait()
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("a request that gives up: %v", err)
		}
		transport.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			if err := context.Cause(r.Context()); !errors.Is(err, errClosed) {
				t.Errorf("the handler has ended because of %v", err)
			}
		}))
		stream := <-answered
		transport.Refuse()
		if _, err := client.Do(request(t, t.Context(), http.MethodGet, nil)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a request after the port was closed: %v", err)
		}
		reads := make(chan error, 1)
		go func() {
			_, err := stream.Body.Read(make([]byte, 1))
			reads <- err
		}()
		synctest.Wait()
		select {
		case err := <-reads:
			t.Errorf("a stream has ended with the port: %v", err)
		default:
		}
		transport.Close()
		if err := <-reads; !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a stream ends with the server: %v", err)
		}
	})
}

func TestAbort(t *testing.T) {
	client, _ := serving(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.(http.Flusher).Flush()
		}
		panic(http.ErrAbortHandler)
	})
	if _, err := client.Do(request(t, t.Context(), http.MethodGet, nil)); !errors.Is(err, io.EOF) {
		t.Errorf("before the header: %v", err)
	}
	answer, err := client.Do(request(t, t.Context(), http.MethodPost, nil))
	if err == nil {
		_, err = io.ReadAll(answer.Body)
	} else if errors.Is(err, io.EOF) { // the client was later than the handler
		err = io.ErrUnexpectedEOF
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("after the header: %v", err)
	}
}

// The body of a request ends with its handler.
func TestBodyAfterTheEnd(t *testing.T) {
	kept := make(chan io.Reader, 1)
	client, _ := serving(t, func(_ http.ResponseWriter, r *http.Request) { kept <- r.Body })
	closed := make(chan struct{})
	answer, err := client.Do(request(t, t.Context(), http.MethodPost, &watchedBody{strings.NewReader("body"), closed}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(answer.Body); err != nil {
		t.Error(err)
	}
	<-closed
	if n, err := (<-kept).Read(make([]byte, 4)); n != 0 || err == nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// watchedBody reports when it is closed.
type watchedBody struct {
	io.Reader
	closed chan struct{}
}

// Close implements io.Closer.
func (b *watchedBody) Close() error {
	close(b.closed)
	return nil
}
