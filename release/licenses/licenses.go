// Package licenses carries the licence texts of the modules and libraries that are compiled into
// barque, and into the programs that it carries. `make licenses` gathers them into files/ (gather
// finds the texts, Pack writes them, All reads them).
//
// A binary that was built without `make` has no texts: ErrNotBuilt.
package licenses

import (
	"bufio"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// File is the name of the packed texts in the folder files.
const File = "licenses.json.zst"

// ErrNotBuilt is returned when the binary was built without the texts.
var ErrNotBuilt = errors.New("this binary was built without the licence texts: build it with `make build`")

//go:embed files
var embedded embed.FS

// Component is a Go module, or a library in C.
type Component struct {
	// Name is the module's path, or the library's name.
	Name    string `json:"name"`
	Version string `json:"version"`
	// Programs are those that the component is compiled into.
	Programs []string `json:"programs"`
	Texts    []Text   `json:"texts"`
}

// Text is a file of a component.
type Text struct {
	// File is its path below the root of the module, or on the machine that built the binary.
	File    string `json:"file"`
	Content string `json:"content"`
}

// All returns the components of this binary, or ErrNotBuilt.
func All() ([]Component, error) {
	packed, err := embedded.ReadFile("files/" + File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotBuilt
	}
	if err != nil {
		return nil, err
	}
	return Unpack(packed)
}

// Unpack returns the components of a packed file.
func Unpack(packed []byte) ([]Component, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	content, err := decoder.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("licence texts: %w", err)
	}
	var components []Component
	if err := json.Unmarshal(content, &components); err != nil {
		return nil, fmt.Errorf("licence texts: %w", err)
	}
	return components, nil
}

// Pack returns the content of File. It depends on the components only.
func Pack(components []Component) ([]byte, error) {
	content, err := json.Marshal(components)
	if err != nil {
		return nil, err
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression),
		zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer encoder.Close()
	return encoder.EncodeAll(content, nil), nil
}

const rule = "================================================================================"

// Write writes the texts of the components for people.
func Write(out io.Writer, components []Component) error {
	w := bufio.NewWriter(out)
	for i, c := range components {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s\n%s\n", rule, c.Heading())
		for _, t := range c.Texts {
			fmt.Fprintf(w, "\n%s:\n\n%s\n", t.File, strings.Trim(t.Content, "\r\n"))
		}
	}
	return w.Flush()
}

// Heading is a line that names the component and its programs.
func (c Component) Heading() string {
	return strings.TrimSpace(c.Name+" "+c.Version) + ", in " + strings.Join(c.Programs, ", ")
}
