//go:build ignore

// Command pack writes the definitions that upstream's openapi-gen has generated beside it into the
// folder that it is given. `make schemas` builds it together with them.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/barque/barque/apiserver/openapi/schemas"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

// run replaces the files of a folder.
func run(folder string) error {
	files, err := schemas.Pack(GetOpenAPIDefinitions)
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(folder, "*.json.zst"))
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
