package execstream

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// command is the last server, whose command prints a word, echoes its input, and exits.
type command struct{ exit int }

type exited int

func (e exited) Error() string   { return fmt.Sprintf("exit status %d", int(e)) }
func (e exited) String() string  { return e.Error() }
func (e exited) Exited() bool    { return true }
func (e exited) ExitStatus() int { return int(e) }

func (c command) ExecInContainer(
	_ context.Context, _, _, _ string, _ []string, in io.Reader, out, stderr io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	if tty {
		size := <-resize
		fmt.Fprintf(out, "%dx%d ", size.Width, size.Height)
	}
	if _, err := io.WriteString(out, "said: "); err != nil {
		return err
	}
	if in != nil {
		word := make([]byte, len("hello"))
		if _, err := io.ReadFull(in, word); err != nil {
			return err
		}
		if _, err := out.Write(word); err != nil {
			return err
		}
	}
	if stderr != nil {
		fmt.Fprint(stderr, "warning")
	}
	if c.exit != 0 {
		return exited(c.exit)
	}
	return nil
}

func (c command) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusTeapot)
		return
	}
	remotecommand.ServeExec(w, r, c, "pod", "", "main", nil, options, time.Minute, time.Minute,
		remotecommand.SupportedStreamingProtocols)
}

// carrier serves clients before a next server.
func carrier(t *testing.T, next http.Handler, query string, streams Streams) *httptest.Server {
	t.Helper()
	last := httptest.NewServer(next)
	t.Cleanup(last.Close)
	location, err := url.Parse(last.URL + "?" + query)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&Handler{Location: location, Transport: &http.Transport{}, Streams: streams,
		Fail: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}})
	t.Cleanup(server.Close)
	return server
}

// TestWebSocketClients: clients of all versions get output and status in their own protocol, though
// the next server speaks SPDY.
func TestWebSocketClients(t *testing.T) {
	const success = `"status":"Success"`
	for protocol, c := range map[string]struct {
		exit   int
		text   bool
		status string
	}{
		"channel.k8s.io":           {0, false, ""},
		"base64.channel.k8s.io":    {7, true, "exit status 7"},
		"v4.channel.k8s.io":        {0, false, success},
		"v4.base64.channel.k8s.io": {7, true, `"reason":"ExitCode","message":"7"`},
		"v5.channel.k8s.io":        {7, false, `"reason":"ExitCode","message":"7"`},
	} {
		t.Run(protocol, func(t *testing.T) {
			server := carrier(t, command{c.exit}, "input=1&output=1&error=1",
				Streams{Stdin: true, Stdout: true, Stderr: true})
			dialer := websocket.Dialer{Subprotocols: []string{protocol}}
			conn, _, err := dialer.DialContext(t.Context(), strings.Replace(server.URL, "http", "ws", 1), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			kind, word := websocket.BinaryMessage, []byte("\x00hello")
			if c.text {
				kind, word = websocket.TextMessage, []byte("0"+base64.StdEncoding.EncodeToString([]byte("hello")))
			}
			if err := conn.WriteMessage(kind, word); err != nil {
				t.Fatal(err)
			}
			got := map[byte]string{}
			for {
				_, message, err := conn.ReadMessage()
				if err != nil {
					if !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
						t.Error(err)
					}
					break
				}
				channel, data := message[0], message[1:]
				if c.text {
					channel -= '0'
					if data, err = base64.StdEncoding.DecodeString(string(data)); err != nil {
						t.Fatal(err)
					}
				}
				got[channel] += string(data)
			}
			if got[1] != "said: hello" || got[2] != "warning" || !strings.Contains(got[3], c.status) ||
				c.status == "" && got[3] != "" {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestRefusals: the next server's refusal goes to a client as it is. One that reads a status gets
// it there.
func TestRefusals(t *testing.T) {
	refuses := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "container main does not run", http.StatusNotFound)
	})
	server := carrier(t, refuses, "output=1", Streams{Stdout: true})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "SPDY/3.1")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusNotFound ||
		string(body) != "container main does not run\n" {
		t.Errorf("%s: %q, %v", response.Status, body, err)
	}
	dialer := websocket.Dialer{Subprotocols: []string{remotecommand.StreamProtocolV5Name}}
	conn, _, err := dialer.DialContext(t.Context(), strings.Replace(server.URL, "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var last string
	for err == nil {
		var message []byte
		if _, message, err = conn.ReadMessage(); len(message) > 1 {
			last = string(message)
		}
	}
	if !strings.HasPrefix(last, "\x03") || !strings.Contains(last, "container main does not run") {
		t.Errorf("the status is %q", last)
	}
	if response, err := http.Get(server.URL); err != nil || response.StatusCode != http.StatusBadGateway {
		t.Errorf("a request without an upgrade: %v, %v", response.Status, err)
	} else {
		response.Body.Close()
	}
}

// TestStatuses: a client of a version without statuses gets a text, and nothing for a success.
func TestStatuses(t *testing.T) {
	for status, want := range map[string]string{
		`{"status":"Success"}`:                      "",
		`{"status":"Failure","message":"it broke"}`: "it broke",
		`broken off`: "broken off",
	} {
		if got := string(messageOf([]byte(status))); got != want {
			t.Errorf("%s: %q, want %q", status, got, want)
		}
	}
	if got := string(failure(errors.New("it broke"))); !strings.Contains(got, `"status":"Failure"`) ||
		!strings.Contains(got, "Internal error occurred: it broke") {
		t.Error(got)
	}
}
