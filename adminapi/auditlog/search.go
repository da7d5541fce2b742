package auditlog

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
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
)

// Answer is one server's.
type Answer struct {
	Server string            `json:"server"`
	Events []json.RawMessage `json:"events"` // in the order of the log
	// Left is why selected events are missing in Events; empty if none are.
	Left string `json:"left,omitempty"`
	// Unreadable counts the lines that are no event: cut off by a full disk, or in another format.
	Unreadable int `json:"unreadable,omitempty"`
}

const (
	// maxBytes bounds the events of an answer.
	maxBytes = 8 << 20
	// maxLine bounds one event. A request's body has at most 3 MiB, and a response may have more.
	maxLine = 16 << 20
	// patience bounds a search. It is shorter than a relay's.
	patience = 8 * time.Second
)

// errLate is the cause with which a search ends.
var errLate = fmt.Errorf("the search took longer than %s: select a shorter time", patience)

// search collects the answer, from the newest file to the oldest.
type search struct {
	query  Query
	words  [][]byte
	answer *Answer
	bytes  int
}

// Search searches the log whose current file is at path.
func Search(ctx context.Context, server, path string, q Query) (*Answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errLate)
	defer cancel()
	files, err := filesOf(path, q.Since)
	if err != nil {
		return nil, err
	}
	s := &search{query: q, words: q.words(), answer: &Answer{Server: server, Events: []json.RawMessage{}}}
	for _, file := range files {
		if s.answer.Left != "" {
			break
		}
		if err := s.file(ctx, file); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
	}
	return s.answer, nil
}

// rotated is the form of the time in the name of a rotated file.
const rotated = "2006-01-02T15-04-05.000"

// filesOf returns the files that may have events since then, the newest first.
func filesOf(path string, since time.Time) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	type old struct {
		at   time.Time
		name string
	}
	var olds []old
	ext := filepath.Ext(path)
	prefix := strings.TrimSuffix(filepath.Base(path), ext) + "-"
	for _, e := range entries {
		name := e.Name()
		plain, zipped := strings.CutSuffix(name, ".gz")
		rest, ours := strings.CutPrefix(plain, prefix)
		rest, whole := strings.CutSuffix(rest, ext)
		at, err := time.Parse(rotated, rest)
		if !ours || !whole || err != nil || at.Before(since) {
			continue
		}
		// While a file is being compressed there are both.
		if zipped && slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == plain }) {
			continue
		}
		olds = append(olds, old{at, name})
	}
	slices.SortFunc(olds, func(a, b old) int { return cmp.Or(b.at.Compare(a.at), strings.Compare(b.name, a.name)) })
	files := []string{path}
	for _, o := range olds {
		files = append(files, filepath.Join(filepath.Dir(path), o.name))
	}
	return files, nil
}

// file searches one file. Its events precede those of the answer.
func (s *search) file(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) { // it was rotated, compressed or deleted meanwhile
		f, err = os.Open(path + ".gz")
		path += ".gz"
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var in io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if in, err = gzip.NewReader(bufio.NewReaderSize(f, 1<<20)); err != nil {
			return err
		}
	}
	lines := bufio.NewReaderSize(in, 1<<20)
	var found []json.RawMessage
	for n := 0; ; n++ {
		if n%256 == 0 && ctx.Err() != nil {
			s.answer.Left = context.Cause(ctx).Error()
			break
		}
		line, whole, err := readLine(lines)
		if len(line) > 0 && whole {
			found = s.take(found, line)
		} else if len(line) > 0 && err == nil {
			s.answer.Unreadable++
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	s.answer.Events = append(found, s.answer.Events...)
	return nil
}

// readLine returns the next line, valid until the next call, and whether it is not cut off.
func readLine(r *bufio.Reader) (line []byte, whole bool, err error) {
	line, err = r.ReadSlice('\n')
	if err == nil {
		return bytes.TrimSuffix(line, []byte("\n")), true, nil
	}
	line, whole = bytes.Clone(line), true
	for errors.Is(err, bufio.ErrBufferFull) {
		var more []byte
		more, err = r.ReadSlice('\n')
		if whole = whole && len(line)+len(more) <= maxLine; whole {
			line = append(line, more...)
		}
	}
	if err != nil { // the last line may be written at this moment
		return line, false, err
	}
	return bytes.TrimSuffix(line, []byte("\n")), whole, nil
}

// take adds a line to the file's events if the query selects it. Beyond the bounds of an answer it
// drops the oldest ones.
func (s *search) take(found []json.RawMessage, line []byte) []json.RawMessage {
	for _, word := range s.words {
		if !bytes.Contains(line, word) {
			return found
		}
	}
	var e seen
	if json.Unmarshal(line, &e) != nil || e.StageTimestamp.IsZero() {
		s.answer.Unreadable++
		return found
	}
	if !s.query.matches(&e) {
		return found
	}
	found = append(found, bytes.Clone(line))
	s.bytes += len(line)
	for len(found) > 0 && (len(found)+len(s.answer.Events) > s.query.Limit || s.bytes > maxBytes) {
		s.bytes -= len(found[0])
		found = found[1:]
		s.answer.Left = "there are more, older ones"
	}
	return found
}
