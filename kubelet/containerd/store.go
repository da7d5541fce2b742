package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/archive/compression"

	"github.com/barque/barque/internal/atomicfile"
)

// Socket returns the containerd socket of the node with that data directory.
func Socket(dataDir string) (string, error) {
	l, err := newLayout(dataDir)
	return l.socket(), err
}

// Import puts the images of a tar, as `docker save` or an OCI layout has them, into the containerd
// at socket. The tar may be compressed with gzip or zstd. It returns their names.
func Import(ctx context.Context, socket string, tar io.Reader) ([]string, error) {
	conn, err := client.New(strings.TrimPrefix(socket, "unix://"), client.WithDefaultNamespace(criNamespace),
		client.WithTimeout(startTimeout))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return load(ctx, conn, tar, map[string]string{labelManaged: "managed"})
}

func load(ctx context.Context, conn *client.Client, tar io.Reader, labels map[string]string) ([]string, error) {
	plain, err := compression.DecompressStream(tar)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	imported, err := conn.Import(ctx, plain, client.WithImageLabels(labels))
	if err != nil {
		return nil, err
	}
	if len(imported) == 0 {
		return nil, errors.New("it holds no image with a name")
	}
	var names []string
	for _, image := range imported {
		names = append(names, image.Name)
	}
	return names, nil
}

// preloaded has the images imported from the directory of images, by file name.
type preloaded map[string]stamp

type stamp struct {
	Size    int64     `json:"size"`
	Changed time.Time `json:"changed"`
}

// preload imports the tars in the node's directory of images that are new or were changed. Garbage
// collection leaves their images alone: there may be no registry to fetch them from.
func (s *Supervisor) preload(ctx context.Context, conn *client.Client) error {
	entries, err := os.ReadDir(s.layout.images())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("images to preload: %w", err)
	}
	record := filepath.Join(s.layout.root(), "preloaded.json") // it goes with the imported images
	done := preloaded{}
	if raw, err := os.ReadFile(record); err == nil {
		_ = json.Unmarshal(raw, &done) // an unreadable record means another import
	}
	for _, e := range entries {
		if e.IsDir() || !isTar(e.Name()) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return fmt.Errorf("images to preload: %w", err)
		}
		now := stamp{info.Size(), info.ModTime().UTC()}
		if done[e.Name()] == now {
			continue
		}
		path := filepath.Join(s.layout.images(), e.Name())
		names, err := s.preloadFile(ctx, conn, path)
		if err != nil {
			// A bad file must not keep the others, or the node, from starting.
			s.config.Logger.Error("cannot import the images of a file", "file", path, "err", err)
			continue
		}
		s.config.Logger.Info("imported images", "file", path, "images", names)
		done[e.Name()] = now
		raw, err := json.Marshal(done)
		if err != nil {
			return err
		}
		if err := atomicfile.Write(record, raw, 0o600); err != nil {
			return fmt.Errorf("images to preload: %w", err)
		}
	}
	return nil
}

func isTar(name string) bool {
	return slices.ContainsFunc([]string{".tar", ".tar.gz", ".tgz", ".tar.zst"},
		func(end string) bool { return strings.HasSuffix(name, end) })
}

func (s *Supervisor) preloadFile(ctx context.Context, conn *client.Client, path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return load(ctx, conn, f, map[string]string{labelManaged: "managed", labelPinned: "pinned"})
}
