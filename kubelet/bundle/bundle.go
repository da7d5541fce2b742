// Package bundle carries a node's components beside the kernel inside the barque binary: runc,
// containerd's shim, the CNI plugins, and the built-in images. `make bundle` builds them from the
// modules in go.mod and packs them into files/ (mkbundle writes, this package reads; index.json is
// their contract).
//
// Unpack puts the executables on disk. It may run while containers run on the executables of an
// older version: a changed file is replaced by rename, so that a running process keeps its inode.
//
// A binary built without `make` compiles and runs, but has no components: every use of one fails
// with ErrNotBundled. Packages kubelet/containerd and network use the components.
package bundle

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/kubelet/bundle/format"
)

// Names of the components. The CNI plugins' names are also the "type" values
// of a CNI configuration.
const (
	Runc      = "runc"
	Shim      = "containerd-shim-runc-v2"
	PTP       = "ptp"
	HostLocal = "host-local"

	pauseTar = "pause.tar"
	helloTar = "hello.tar"
)

// References of the built-in images.
const (
	PauseImage = "barque.local/pause:1"
	HelloImage = "barque.local/hello:1"
)

// ErrNotBundled is returned when the binary was built without its components.
var ErrNotBundled = errors.New("this binary was built without its node components: build it with `make build`")

// Image is a built-in image.
type Image struct {
	Ref    string // as pods name it
	SHA256 string // of its tar
	file   string
}

//go:embed files
var embedded embed.FS

// Bundle reads packed components.
type Bundle struct {
	files fs.FS
	index format.Index
}

// Open returns the components inside this binary, or ErrNotBundled.
func Open() (*Bundle, error) {
	files, err := fs.Sub(embedded, "files")
	if err != nil {
		return nil, err
	}
	return open(files)
}

func open(files fs.FS) (*Bundle, error) {
	content, err := fs.ReadFile(files, format.IndexFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotBundled
	}
	if err != nil {
		return nil, err
	}
	b := &Bundle{files: files}
	if err := json.Unmarshal(content, &b.index); err != nil {
		return nil, fmt.Errorf("node components: %s: %w", format.IndexFile, err)
	}
	for _, name := range []string{Runc, Shim, PTP, HostLocal, pauseTar, helloTar} {
		if _, err := b.component(name); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// component finds a component by name.
func (b *Bundle) component(name string) (format.Component, error) {
	for _, c := range b.index.Components {
		if c.Name == name {
			return c, nil
		}
	}
	return format.Component{}, fmt.Errorf("%w (%s is not in it)", ErrNotBundled, name)
}

// Unpack makes dir hold the executables, each whole and as packed. A file that is already so stays
// untouched. The lock of a node's data directory keeps other processes from unpacking there.
func (b *Bundle) Unpack(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("unpack node components: %w", err)
	}
	for _, component := range b.index.Components {
		if !component.Executable {
			continue
		}
		if err := b.unpackOne(component, dir); err != nil {
			return fmt.Errorf("unpack %s into %s: %w", component.Name, dir, err)
		}
	}
	return nil
}

func (b *Bundle) unpackOne(component format.Component, dir string) error {
	path := filepath.Join(dir, component.Name)
	// A killed Unpack has left a part, maybe of another version.
	if err := atomicfile.Sweep(path); err != nil {
		return err
	}
	if same, err := matches(path, component); err != nil || same {
		return err
	}
	content, err := b.content(component)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, content, 0o755)
}

// matches reports whether path is an executable with the component's content.
func matches(path string, component format.Component) (bool, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	if info.Size() != component.Size || info.Mode().Perm() != 0o755 || !info.Mode().IsRegular() {
		return false, nil
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return false, err
	}
	return hex.EncodeToString(hash.Sum(nil)) == component.SHA256, nil
}

// Images returns the built-in images.
func (b *Bundle) Images() []Image {
	var images []Image
	for _, component := range b.index.Components {
		switch component.Name {
		case pauseTar:
			images = append(images, Image{Ref: PauseImage, SHA256: component.SHA256, file: component.Name})
		case helloTar:
			images = append(images, Image{Ref: HelloImage, SHA256: component.SHA256, file: component.Name})
		}
	}
	return images
}

// OpenImage returns the image's tar, as containerd imports it.
func (b *Bundle) OpenImage(image Image) (io.Reader, error) {
	component, err := b.component(image.file)
	if err != nil {
		return nil, err
	}
	content, err := b.content(component)
	if err != nil {
		return nil, fmt.Errorf("built-in image %s: %w", image.Ref, err)
	}
	return bytes.NewReader(content), nil
}

// content unpacks a component and checks it: the checksum guards against a
// damaged binary, not against a hostile one.
func (b *Bundle) content(component format.Component) ([]byte, error) {
	packed, err := fs.ReadFile(b.files, component.Name+format.PackedSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w (%s is not in it)", ErrNotBundled, component.Name)
	}
	if err != nil {
		return nil, err
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	content, err := decoder.DecodeAll(packed, make([]byte, 0, component.Size))
	if err != nil {
		return nil, fmt.Errorf("%s is damaged inside this binary: %w", component.Name, err)
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != component.SHA256 {
		return nil, fmt.Errorf("%s is damaged inside this binary: its checksum is wrong", component.Name)
	}
	return content, nil
}
