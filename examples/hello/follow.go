package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// follow prints the lines that are added to the files below dir whose names end with .log, each
// after its folder, until ctx ends. It looks every second. Logs that are full get other names.
func follow(ctx context.Context, dir string, out io.Writer) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	read := map[string]int64{} // how much of each file has been
	for first := true; ; first = false {
		err := fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || !strings.HasSuffix(name, ".log") {
				return nil // it may be gone by now
			}
			info, err := entry.Info()
			if err != nil {
				return nil
			}
			if first { // lines from before the start
				read[name] = info.Size()
			}
			if info.Size() < read[name] { // it begins anew
				read[name] = 0
			}
			read[name] += added(root, name, read[name], out)
			return nil
		})
		if err != nil {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

// added prints the whole lines of a file from an offset on, and returns how many bytes they are.
func added(root *os.Root, name string, from int64, out io.Writer) int64 {
	f, err := root.Open(name)
	if err != nil {
		return 0
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return 0
	}
	var n int64
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return n // without its end it is not a line yet
		}
		n += int64(len(line))
		fmt.Fprintf(out, "%s: %s\n", filepath.Dir(name), strings.TrimSuffix(line, "\n"))
	}
}
