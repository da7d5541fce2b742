// Package plugins finds the plugins of a node by the sockets that they put into a directory, and
// hands them to the parts of the kubelet that use them. It speaks k8s.io/kubelet's
// pluginregistration v1.
//
// It knows no kind of plugin: a Handler does.
package plugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// scanPeriod is how often the directory is looked at.
	scanPeriod = time.Second
	// callTimeout bounds one call of a plugin.
	callTimeout = 10 * time.Second
	// The pauses between tries to register a plugin.
	firstRetry, longestRetry = time.Second, 2 * time.Minute
)

// Plugin is a plugin that has announced itself.
type Plugin struct {
	Name string
	// Endpoint is the socket of its service.
	Endpoint string
	Versions []string
}

// Handler uses plugins of one type. Its methods are called one at a time for one socket, and
// concurrently for several: a plugin that does not answer delays no other.
type Handler interface {
	// Register takes a plugin, in place of another one of its name. The plugin gets the error, and
	// is tried again later.
	Register(context.Context, Plugin) error
	// Deregister is called when the plugin's socket is gone, or is another plugin's now. A plugin
	// with the same name and another endpoint stays.
	Deregister(Plugin)
}

// Registry looks for plugins.
type Registry struct {
	dir      string
	handlers map[string]Handler // by type
	log      *slog.Logger
	known    map[string]*found // by path
	results  chan func()       // of registrations, for the goroutine of Run
	running  sync.WaitGroup
}

// found is a socket in the directory.
type found struct {
	inode   uint64
	created time.Time
	plugin  *Plugin // nil until it is registered
	kind    string
	delay   time.Duration
	retryAt time.Time
	busy    bool // it is being registered
	gone    bool // it went meanwhile
}

// New prepares a registry, and makes its directory.
func New(dir string, handlers map[string]Handler, log *slog.Logger) (*Registry, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make the directory of plugins: %w", err)
	}
	return &Registry{dir: dir, handlers: handlers, log: log, known: map[string]*found{}, results: make(chan func())},
		nil
}

// Run looks for plugins until ctx ends. Plugins stay registered then.
func (r *Registry) Run(ctx context.Context) error {
	tick := time.NewTicker(scanPeriod)
	defer tick.Stop()
	defer r.running.Wait()
	for {
		if err := r.scan(ctx); err != nil {
			r.log.Warn("cannot look for plugins; trying again", "directory", r.dir, "err", err)
		}
		for looked := false; !looked; {
			select {
			case <-ctx.Done():
				return nil
			case result := <-r.results:
				result()
			case <-tick.C:
				looked = true
			}
		}
	}
}

// scan registers the sockets that are new, and deregisters those that are gone.
func (r *Registry) scan(ctx context.Context) error {
	there := map[string]bool{}
	err := filepath.WalkDir(r.dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it went meanwhile
		case err != nil:
			return err
		case strings.HasPrefix(entry.Name(), ".") && path != r.dir:
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.Type()&fs.ModeSocket == 0:
			return nil
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		there[path] = true
		r.look(ctx, path, info)
		return nil
	})
	if err != nil {
		return err
	}
	for path, f := range r.known {
		if !there[path] {
			r.drop(path, f)
		}
	}
	return nil
}

func (r *Registry) look(ctx context.Context, path string, info fs.FileInfo) {
	var inode uint64
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = stat.Ino
	}
	f := r.known[path]
	if f != nil && f.busy {
		return
	}
	if f != nil && (f.inode != inode || !f.created.Equal(info.ModTime())) {
		// The plugin has started again. It is registered anew and not dropped first: its service
		// may be in use.
		f = nil
	}
	if f == nil {
		f = &found{inode: inode, created: info.ModTime()}
		if old := r.known[path]; old != nil {
			f.plugin, f.kind = old.plugin, old.kind
		}
		r.known[path] = f
	} else if f.plugin != nil && f.retryAt.IsZero() {
		return
	}
	if time.Now().Before(f.retryAt) {
		return
	}
	f.busy = true
	r.running.Go(func() { // ends with its time-outs, or with ctx
		plugin, kind, err := r.register(ctx, path)
		select {
		case r.results <- func() { r.registered(path, f, plugin, kind, err) }:
		case <-ctx.Done():
		}
	})
}

// registered takes the outcome of a registration.
func (r *Registry) registered(path string, f *found, plugin *Plugin, kind string, err error) {
	f.busy = false
	if plugin != nil {
		was, of := f.plugin, f.kind
		f.plugin, f.kind = plugin, kind
		// A plugin that has restarted at this socket may serve at another endpoint, or have another
		// name. Nothing else would end its earlier registration.
		if was != nil && (of != kind || was.Name != plugin.Name || was.Endpoint != plugin.Endpoint) {
			r.handlers[of].Deregister(*was)
		}
	}
	if err != nil {
		f.delay = min(max(2*f.delay, firstRetry), longestRetry)
		f.retryAt = time.Now().Add(f.delay)
		r.log.Warn("cannot register a plugin; trying again", "socket", path, "again", f.delay, "err", err)
	} else {
		f.delay, f.retryAt = 0, time.Time{}
	}
	if f.gone {
		r.drop(path, f)
	}
}

// register asks the plugin for its kind, hands it to its handler and notifies it of the outcome. It
// returns the plugin if it was accepted.
func (r *Registry) register(ctx context.Context, path string) (taken *Plugin, kind string, err error) {
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, "", err
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	ask, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := client.GetInfo(ask, &registerapi.InfoRequest{})
	if err != nil {
		return nil, "", fmt.Errorf("ask what it is: %w", err)
	}
	plugin := Plugin{Name: info.Name, Endpoint: info.Endpoint, Versions: info.SupportedVersions}
	if plugin.Endpoint == "" {
		plugin.Endpoint = path
	}
	outcome := &registerapi.RegistrationStatus{PluginRegistered: true}
	handler := r.handlers[info.Type]
	if handler == nil {
		err = fmt.Errorf("no handler registered for plugin type: %s at socket %s", info.Type, path)
	} else {
		err = handler.Register(ctx, plugin)
	}
	if err != nil {
		outcome = &registerapi.RegistrationStatus{Error: err.Error()}
	} else {
		taken = &plugin
	}
	tell, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, told := client.NotifyRegistrationStatus(tell, outcome); told != nil && err == nil {
		err = fmt.Errorf("tell plugin %s that it is registered: %w", plugin.Name, told)
	}
	return taken, info.Type, err
}

func (r *Registry) drop(path string, f *found) {
	if f.gone = true; f.busy {
		return // until the outcome is there
	}
	delete(r.known, path)
	if f.plugin != nil {
		r.handlers[f.kind].Deregister(*f.plugin)
	}
}
