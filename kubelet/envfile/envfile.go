// Package envfile reads environment variables from files that containers have written into a
// volume. The files are not to be trusted: a path may be a link that leads out of the volume, or a
// pipe, or very long.
//
// A file has lines NAME='value'. A value may span lines, and nothing in it is special. Comments
// begin with # on a line of their own or after a value. A space after the equals sign makes the
// value empty, as in a shell.
package envfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// longest is the size of a file that is read.
const longest = 1 << 20

// Value returns the value of a key in a file below a directory. It is false when there is no such
// file or no such key, or when the value is empty.
func Value(dir, path, key string) (string, bool, error) {
	text, err := read(dir, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", false, nil
	case err != nil:
		return "", false, err
	}
	value, err := find(text, key)
	if err != nil {
		return "", false, fmt.Errorf("the file %s: %w", path, err)
	}
	return value, value != "", nil
}

// read reads a regular file. Links are followed within the directory alone.
func read(dir, path string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	f, err := root.OpenFile(strings.TrimLeft(path, "/"), os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would block
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, longest+1))
	if err != nil {
		return "", err
	}
	if len(data) > longest {
		return "", fmt.Errorf("the file %s is longer than %d bytes", path, longest)
	}
	return string(data), nil
}

// find returns the value of a key, or "".
func find(text, key string) (string, error) {
	for number := 1; text != ""; number++ {
		line, rest, _ := strings.Cut(text, "\n")
		line = strings.TrimLeft(line, " \t")
		if trimmed := strings.TrimRight(line, "\r"); trimmed == "" || trimmed[0] == '#' {
			text = rest
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		switch {
		case !ok:
			return "", fmt.Errorf("line %d has no equals sign", number)
		case name == "":
			return "", fmt.Errorf("line %d has no name before the equals sign", number)
		case strings.TrimRight(name, " \t") != name:
			return "", fmt.Errorf("line %d has a space before the equals sign", number)
		}
		if strings.TrimLeft(value, " \t") != value {
			if name == key {
				return "", nil
			}
			text = rest
			continue
		}
		if !strings.HasPrefix(value, "'") {
			return "", fmt.Errorf("line %d has a value without single quotes", number)
		}
		// The value ends with the next quote, which may stand some lines below.
		value, after, ok := strings.Cut(text[strings.IndexByte(text, '=')+2:], "'")
		if !ok {
			return "", fmt.Errorf("line %d has a single quote that is not closed", number)
		}
		tail, rest, _ := strings.Cut(after, "\n")
		number += strings.Count(value, "\n")
		if tail = strings.Trim(tail, " \t\r"); tail != "" && tail[0] != '#' {
			return "", fmt.Errorf("line %d has more than a comment after the value", number)
		}
		if name == key {
			return value, nil
		}
		text = rest
	}
	return "", nil
}
