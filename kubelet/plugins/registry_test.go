package plugins

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// driver is a plugin with a socket for its registration.
type driver struct {
	registerapi.UnimplementedRegistrationServer
	name, endpoint string
	asked          chan struct{} // gets a value for each GetInfo, if there is one
	answer         chan struct{} // each GetInfo waits for its end, if there is one
	told           chan bool
	server         *grpc.Server
}

func (d *driver) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	if d.asked != nil {
		d.asked <- struct{}{}
	}
	if d.answer != nil {
		select {
		case <-d.answer:
		case <-ctx.Done():
		}
	}
	return &registerapi.PluginInfo{Type: "test", Name: d.name, Endpoint: d.endpoint, SupportedVersions: []string{"v1"}},
		nil
}

func (d *driver) NotifyRegistrationStatus(
	_ context.Context, s *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	d.told <- s.PluginRegistered
	return &registerapi.RegistrationStatusResponse{}, nil
}

// begin listens at the path.
func (d *driver) begin(t *testing.T, path string) {
	t.Helper()
	d.told = make(chan bool, 10)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as where a process is killed
	d.server = grpc.NewServer()
	registerapi.RegisterRegistrationServer(d.server, d)
	go func() { _ = d.server.Serve(l) }() // ends with Stop
	t.Cleanup(d.server.Stop)
}

// registered is a handler that keeps the plugins it was given, by their endpoints.
type registered struct {
	mu sync.Mutex
	at []string
}

func (r *registered) Register(_ context.Context, p Plugin) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.at, p.Endpoint) {
		r.at = append(r.at, p.Endpoint)
	}
	return nil
}

func (r *registered) Deregister(p Plugin) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = slices.DeleteFunc(r.at, func(e string) bool { return e == p.Endpoint })
}

// scanned looks at the directory, and waits for the registrations that this began.
func scanned(t *testing.T, r *Registry) {
	t.Helper()
	if err := r.scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	settle(r)
}

func settle(r *Registry) {
	for _, f := range r.known {
		if f.busy {
			(<-r.results)()
		}
	}
}

// TestADriverIsReplaced: an update ends one instance of a driver and begins another, in any order
// and at any moment of a registration. The new one is registered in the end, and nothing else.
func TestADriverIsReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		files [2]string // of the sockets of the old and the new instance
		// update goes from one to the other, before the last look at the directory.
		update func(t *testing.T, r *Registry, before, after string, old, next *driver)
	}{
		"between two looks": {[2]string{"d.sock", "d.sock"},
			func(t *testing.T, r *Registry, before, after string, old, next *driver) {
				end(t, old, before)
				next.begin(t, after)
			}},
		"with a look between": {[2]string{"d.sock", "d.sock"},
			func(t *testing.T, r *Registry, before, after string, old, next *driver) {
				end(t, old, before)
				scanned(t, r)
				next.begin(t, after)
			}},
		"while the new one is being registered it begins again": {[2]string{"d.sock", "d.sock"},
			func(t *testing.T, r *Registry, before, after string, old, next *driver) {
				end(t, old, before)
				first := &driver{name: next.name, endpoint: "first", asked: make(chan struct{}, 1),
					answer: make(chan struct{})}
				first.begin(t, after)
				if err := r.scan(t.Context()); err != nil {
					t.Fatal(err)
				}
				<-first.asked
				end(t, first, after)
				if err := r.scan(t.Context()); err != nil { // it is seen to be gone, in the middle
					t.Fatal(err)
				}
				next.begin(t, after)
				settle(r)
			}},
		"beside each other, the old one ends last": {[2]string{"old.sock", "new.sock"},
			func(t *testing.T, r *Registry, before, after string, old, next *driver) {
				next.begin(t, after)
				scanned(t, r)
				end(t, old, before)
			}},
		"beside each other, the old one ends while the new one is registered": {[2]string{"old.sock", "new.sock"},
			func(t *testing.T, r *Registry, before, after string, old, next *driver) {
				next.asked, next.answer = make(chan struct{}, 1), make(chan struct{})
				next.begin(t, after)
				if err := r.scan(t.Context()); err != nil {
					t.Fatal(err)
				}
				<-next.asked
				end(t, old, before)
				if err := r.scan(t.Context()); err != nil {
					t.Fatal(err)
				}
				close(next.answer)
				settle(r)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "reg") // short enough for a socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			handler := &registered{}
			r, err := New(dir, map[string]Handler{"test": handler}, slog.New(slog.NewTextHandler(io.Discard, nil)))
			if err != nil {
				t.Fatal(err)
			}
			before, after := filepath.Join(dir, c.files[0]), filepath.Join(dir, c.files[1])
			old, next := &driver{name: "d", endpoint: "old"}, &driver{name: "d", endpoint: "new"}
			old.begin(t, before)
			scanned(t, r)
			if !slices.Equal(handler.at, []string{"old"}) || !<-old.told {
				t.Fatalf("registered: %v", handler.at)
			}
			c.update(t, r, before, after, old, next)
			scanned(t, r)
			if !slices.Equal(handler.at, []string{"new"}) {
				t.Errorf("registered: %v", handler.at)
			}
			if !<-next.told {
				t.Error("the new one was told that it is not registered")
			}
		})
	}
}

// end ends a driver as an orderly process does: its socket goes.
func end(t *testing.T, d *driver, path string) {
	t.Helper()
	d.server.Stop()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
