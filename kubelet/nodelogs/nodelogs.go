// Package nodelogs serves the logs of a node at /logs/: the files below /var/log, and, where the
// node's configuration allows it, the journal of services (node log query).
//
// Readers see nothing else of the machine: no link leads out of the directory, also when pods that
// share it change links meanwhile.
package nodelogs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Dir is where nodes have their logs.
const Dir = "/var/log"

// Handler serves a directory of logs, by paths without /logs. With queries it also accepts the
// parameter query, which names services or one file.
func Handler(dir string, queries bool) http.Handler {
	files := http.FileServerFS(tree(dir))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !queries {
			files.ServeHTTP(w, r)
			return
		}
		q, err := parse(r.URL.Query())
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
		case q == nil:
			files.ServeHTTP(w, r)
		case strings.Trim(r.URL.Path, "/") != "":
			http.Error(w, "path not allowed in query mode", http.StatusNotAcceptable)
		case q.file != "":
			file := *r
			file.URL = &url.URL{
				Path: "/" + strings.TrimPrefix(path.Clean("/"+strings.ReplaceAll(q.file, `\`, "/")), "/")}
			files.ServeHTTP(w, &file)
		default:
			w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
			q.copyTo(r.Context(), w, dir)
		}
	})
}

// tree is the directory as a file system that is opened anew for each file, so that it may
// be made later.
type tree string

// Open implements fs.FS. A link, absolute ones too, may lead to another place in the directory.
func (t tree) Open(name string) (fs.File, error) {
	root, err := os.OpenRoot(string(t))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := openIn(root, name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	top, err := filepath.EvalSymlinks(string(t))
	if err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(filepath.Join(top, filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	inside, err := filepath.Rel(top, real)
	if err != nil || !filepath.IsLocal(inside) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return openIn(root, inside)
}

// openIn opens a file or directory. It refuses a pipe, because reading it would block.
func openIn(root *os.Root, name string) (fs.File, error) {
	info, err := root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may have become a pipe
}

// Bounds of a query, as Kubernetes documents them.
const (
	mostServices = 4
	longestName  = 256
	mostLines    = 100000
	patience     = 30 * time.Second
)

// query is a request for the log of services, or for one file.
type query struct {
	services     []string
	file         string
	since, until *time.Time
	boot, lines  *int
	pattern      string
}

func (q *query) options() bool {
	return q.since != nil || q.until != nil || q.boot != nil || q.lines != nil || q.pattern != ""
}

var unsafe = regexp.MustCompile(`[^a-zA-Z\-_.:0-9@]`)

// parse returns nil without a query.
func parse(values url.Values) (*query, error) {
	var q query
	var errs []error
	bad := func(name string, value any, why string) {
		errs = append(errs, fmt.Errorf("%s: Invalid value: %q: %s", name, fmt.Sprint(value), why))
	}
	var names []string
	for _, name := range values["query"] {
		switch {
		case strings.ContainsAny(name, `/\`) && q.file != "":
			bad("query", name, "cannot specify more than one file")
		case strings.ContainsAny(name, `/\`):
			q.file = name
		case strings.TrimSpace(name) != "":
			names = append(names, name)
		}
	}
	q.services = names
	for _, name := range names {
		switch {
		case len(name) > longestName:
			bad("query", name[:longestName], fmt.Sprintf("must have at most %d characters", longestName))
		case unsafe.MatchString(name) || strings.HasPrefix(name, "-"):
			bad("query", name, "has characters that no service has")
		}
	}
	if len(names) > mostServices {
		bad("query", names, fmt.Sprintf("must have at most %d items", mostServices))
	}
	moment := func(name string) *time.Time {
		value := values.Get(name)
		if value == "" {
			return nil
		}
		t, err := time.Parse(time.RFC3339, value)
		if err != nil {
			bad(name, value, "invalid time format")
		}
		return &t
	}
	number := func(name string, least, most int) *int {
		value := values.Get(name)
		if value == "" {
			return nil
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < least || n > most {
			bad(name, value, fmt.Sprintf("must be a number from %d to %d", least, most))
		}
		return &n
	}
	q.since, q.until = moment("sinceTime"), moment("untilTime")
	if q.since != nil && q.until != nil && q.since.After(*q.until) {
		bad("untilTime", q.until.Format(time.RFC3339), "must be after `sinceTime`")
	}
	q.boot, q.lines = number("boot", -mostLines, 0), number("tailLines", 0, mostLines)
	q.pattern = values.Get("pattern")
	if _, err := syntax.Parse(q.pattern, syntax.Perl); err != nil {
		bad("pattern", q.pattern, err.Error())
	}
	_, asked := values["query"]
	switch {
	case q.file != "" && len(q.services) > 0:
		bad("query", values["query"], "cannot specify a file and service")
	case q.file != "" && q.options():
		bad("query", q.file, "cannot specify file with options")
	case q.file == "" && len(q.services) == 0 && (asked || q.options()):
		bad("query", values["query"], "may not be empty")
	case q.file == "" && len(q.services) == 0 && len(errs) == 0:
		return nil, nil
	}
	return &q, errors.Join(errs...)
}

// copyTo writes the log of the services: from the journal if it has them, else from a file
// of their name.
func (q *query) copyTo(ctx context.Context, w io.Writer, dir string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	units, _ := exec.CommandContext(ctx, "journalctl", "--field", "_SYSTEMD_UNIT").Output() // none without a journal
	known := map[string]bool{}
	for line := range strings.Lines(string(units)) {
		known[strings.TrimSpace(line)] = true
	}
	var inJournal []string
	for _, name := range q.services {
		switch {
		case known[name], known[name+".service"]:
			inJournal = append(inJournal, name)
		case q.options():
			fmt.Fprintf(w, "the journal does not know %s, and options are for the journal alone; try without them\n",
				name)
		default:
			copyFile(w, tree(dir), name)
		}
	}
	if len(inJournal) == 0 {
		return
	}
	command := exec.CommandContext(ctx, "journalctl", q.arguments(inJournal)...)
	command.Stdout, command.Stderr = w, w
	if err := command.Run(); err != nil {
		fmt.Fprintf(w, "error: journalctl: %v\n", err)
	}
}

// arguments are those of journalctl.
func (q *query) arguments(units []string) []string {
	const layout = "2006-01-02 15:04:05 UTC"
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	if q.since != nil {
		args = append(args, "--since="+q.since.UTC().Format(layout))
	}
	if q.until != nil {
		args = append(args, "--until="+q.until.UTC().Format(layout))
	}
	if q.lines != nil {
		args = append(args, "--pager-end", "--lines="+strconv.Itoa(*q.lines))
	}
	for _, unit := range units {
		args = append(args, "--unit="+unit)
	}
	if q.pattern != "" {
		args = append(args, "--grep="+q.pattern)
	}
	if q.boot != nil {
		args = append(args, "--boot="+strconv.Itoa(*q.boot))
	}
	return args
}

// copyFile writes the log file of a service, by one of the names that such files have.
func copyFile(w io.Writer, dir tree, service string) {
	for _, name := range []string{service, service + ".log", service + "/" + service + ".log"} {
		f, err := dir.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			info, statErr := f.Stat()
			if statErr == nil && info.IsDir() {
				f.Close()
				continue
			}
			_, err = io.Copy(w, f)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			fmt.Fprintf(w, "error getting log for %s: %v\n", service, err)
		}
		return
	}
	fmt.Fprintf(w, "log not found for %s\n", service)
}
