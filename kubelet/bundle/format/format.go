// Package format is the contract between mkbundle, which packs the node components, and package
// bundle, which embeds and unpacks them. It is a package of its own so that the tool does not embed
// its own output.
package format

// IndexFile and PackedSuffix name the files in kubelet/bundle/files.
const (
	IndexFile    = "index.json"
	PackedSuffix = ".zst"
)

// Index lists the packed files. It is written last: a folder that has it is whole.
type Index struct {
	Components []Component `json:"components"`
}

// Component describes one packed file; size and checksum are of its unpacked content.
type Component struct {
	Name       string `json:"name"`
	Size       int64  `json:"size"`
	SHA256     string `json:"sha256"`
	Executable bool   `json:"executable"`
}
