package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	pluginlog "k8s.io/apiserver/plugin/pkg/audit/log"
)

// file is the target of the log sink: events in lines.
type file struct {
	legacy  bool
	encoder runtime.Encoder

	mu   sync.Mutex
	out  io.Writer
	torn bool // the last line was cut off: the next one begins with a new line
}

func newFile(out io.Writer, format string, version schema.GroupVersion) *file {
	return &file{out: out, legacy: format == pluginlog.FormatLegacy, encoder: audit.Codecs.LegacyCodec(version)}
}

// openFile opens the file, which only root may read. The lines of a file that exists stay.
func openFile(path string, o *genericoptions.AuditLogOptions) (io.Writer, error) {
	if path == "-" {
		return os.Stdout, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("directory of the audit log: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	if o.MaxSize == 0 {
		return f, nil
	}
	// lumberjack opens it again, and gives the next file the mode of this one.
	return &lumberjack.Logger{Filename: path, MaxAge: o.MaxAge, MaxBackups: o.MaxBackups, MaxSize: o.MaxSize,
			Compress: o.Compress},
		f.Close()
}

// send implements target. Each event is one write, so that no line spans two files.
func (f *file) send(_ context.Context, events []*auditinternal.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, e := range events {
		line, err := f.line(e)
		if err == nil {
			err = f.write(line)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// line returns an event with its new line.
func (f *file) line(e *auditinternal.Event) ([]byte, error) {
	if f.legacy {
		return []byte(audit.EventString(e) + "\n"), nil
	}
	line := new(bytes.Buffer)
	err := f.encoder.Encode(e, line)
	return line.Bytes(), err
}

func (f *file) write(line []byte) error {
	if f.torn {
		line = append([]byte("\n"), line...)
	}
	n, err := f.out.Write(line)
	if n > 0 {
		f.torn = n < len(line)
	}
	return err
}
