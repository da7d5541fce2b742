package static

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pods runs pods. It is package pods' Manager.
type Pods interface {
	Update(pod *v1.Pod)
	Remove(pod *v1.Pod)
	// Has reports whether anything of a pod is left.
	Has(uid types.UID) bool
}

// SourceConfig configures a Source.
type SourceConfig struct {
	Dir      string // of manifests; files whose names begin with a dot are none
	NodeName string
	Every    time.Duration // the interval of full reads without events; 20 s when 0
	Pods     Pods
	Mirrors  *Mirrors
	Logger   *slog.Logger
	Now      func() time.Time // time.Now when nil
}

// Source makes the node run the manifests of a directory.
type Source struct {
	SourceConfig
	once    chan struct{}      // closed once the manifests have been read
	running map[string]*v1.Pod // by namespace/name; Run's goroutine alone touches these
	ending  map[string]bool    // those of running whose end was requested
	told    map[string]string  // the mistake of a file that was last logged
}

// NewSource returns a source that has read nothing.
func NewSource(config SourceConfig) *Source {
	if config.Every == 0 {
		config.Every = 20 * time.Second
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Source{SourceConfig: config, once: make(chan struct{}), running: map[string]*v1.Pod{},
		ending: map[string]bool{}, told: map[string]string{}}
}

// Known is closed once Pods has all manifests.
func (s *Source) Known() <-chan struct{} { return s.once }

// A burst of changes is read once, when it is over, or at the latest after settleMost: an editor's
// swap file may change all the time. A pod that must end first is checked again soon.
const (
	settle     = 100 * time.Millisecond
	settleMost = time.Second
	retrySoon  = time.Second
	maxFile    = 10 << 20
	hiddenFile = "."
)

// Run follows the directory until ctx ends. Pods go on running then.
func (s *Source) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for static pods: %w", err)
	}
	defer watcher.Close()
	watched := false
	var latest time.Time // when a burst that has begun is read at the latest
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-watcher.Events:
			if event.Name == s.Dir && event.Has(fsnotify.Remove|fsnotify.Rename) {
				watched = false
			}
			if latest.IsZero() {
				latest = time.Now().Add(settleMost)
			}
			timer.Reset(min(settle, time.Until(latest)))
			continue
		case err := <-watcher.Errors:
			s.Logger.Debug("the watch of static pods' manifests told of an error; they are read regularly, too",
				"err", err)
			continue
		case <-timer.C:
		}
		latest = time.Time{}
		if !watched {
			watched = watcher.Add(s.Dir) == nil // a directory that is made later is found at the next read
		}
		if s.sync() {
			timer.Reset(s.Every)
		} else {
			timer.Reset(retrySoon)
		}
	}
}

// sync makes the running pods match the manifests. It is false when it must be called again soon.
func (s *Source) sync() bool {
	wanted, err := s.read()
	if err != nil {
		s.Logger.Warn("cannot read the manifests of static pods; what runs stays as it is", "dir", s.Dir, "err", err)
		return true
	}
	done := true
	for name, pod := range s.running {
		now := wanted[name]
		if now == nil || now.UID != pod.UID {
			s.ending[name] = true
			s.Pods.Remove(pod)
		}
		switch {
		case !s.Pods.Has(pod.UID): // it has ended, here or for another reason: a wanted one starts anew
			delete(s.running, name)
			if s.ending[name] {
				delete(s.ending, name)
				s.Mirrors.renew(pod)
			}
		case s.ending[name]:
			done = false // a successor has the same name and ports, and maybe the same UID: it waits
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		pod := wanted[name]
		if s.running[name] != nil {
			continue
		}
		s.Mirrors.adopt(pod)
		s.running[name] = pod
		s.Logger.Info("running a static pod", "pod", name, "uid", pod.UID)
		s.Pods.Update(pod)
	}
	s.Mirrors.want(s.running)
	select {
	case <-s.once:
	default:
		close(s.once)
	}
	return done
}

// read returns the pods of all files, by namespace/name. A file with a mistake counts as missing:
// its pod ends.
func (s *Source) read() (map[string]*v1.Pod, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pods := map[string]*v1.Pod{}
	for _, e := range entries {
		path := filepath.Join(s.Dir, e.Name())
		if strings.HasPrefix(e.Name(), hiddenFile) {
			continue
		}
		pod, err := s.readFile(path)
		if err == nil && pod != nil {
			if other := pods[pod.Namespace+"/"+pod.Name]; other != nil {
				err = fmt.Errorf("another file has pod %s/%s, too", pod.Namespace, pod.Name)
			} else {
				pods[pod.Namespace+"/"+pod.Name] = pod
			}
		}
		mistake := ""
		if err != nil {
			mistake = err.Error()
		}
		if mistake != s.told[path] {
			s.told[path] = mistake
			if mistake != "" {
				s.Logger.Error("a static pod's manifest cannot be used", "file", path, "err", mistake)
			}
		}
	}
	return pods, nil
}

func (s *Source) readFile(path string) (*v1.Pod, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, nil
	case info.Size() > maxFile:
		return nil, fmt.Errorf("the file has %d bytes; at most %d are read", info.Size(), maxFile)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(raw, path, s.NodeName, s.Now())
}
