package auditlog

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// line is an event n minutes after noon, as the audit log has it.
func line(n int, more string) string {
	return fmt.Sprintf(
		`{"kind":"Event","apiVersion":"audit.k8s.io/v1","auditID":"%d","stage":"ResponseComplete",%s"stageTimestamp":"%s"}`+"\n",
		n, more, noon.Add(time.Duration(n)*time.Minute).Format("2006-01-02T15:04:05.000000Z"))
}

// write makes a log: file names to their texts, those with .gz compressed.
func write(t *testing.T, files map[string]string) (path string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".gz") {
			z := gzip.NewWriter(f)
			if _, err := z.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			err = z.Close()
		} else {
			_, err = f.WriteString(text)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "audit.log")
}

func find(t *testing.T, path string, q Query) (ids string, answer *Answer) {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 100
	}
	answer, err := Search(t.Context(), "s1", path, q)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, raw := range answer.Events {
		var e struct{ AuditID string }
		if err := json.Unmarshal(raw, &e); err != nil {
			t.Fatal(err)
		}
		out = append(out, e.AuditID)
	}
	return strings.Join(out, " "), answer
}

// TestFiles: rotated files that are young enough are searched, each once.
func TestFiles(t *testing.T) {
	path := write(t, map[string]string{
		"audit.log":                            line(5, "") + line(6, ""),
		"audit-2026-11-29T12-04-30.000.log":    line(3, "") + line(4, ""),
		"audit-2026-11-29T12-04-30.000.log.gz": line(3, ""), // being compressed
		"audit-2026-11-29T12-02-30.000.log.gz": line(1, "") + line(2, ""),
		"audit-2026-11-29T12-00-30.000.log.gz": line(0, ""),
		"audit-other.log":                      line(9, ""),
		"another.log":                          line(9, ""),
	})
	for since, want := range map[int]string{-10: "0 1 2 3 4 5 6", 1: "1 2 3 4 5 6", 2: "2 3 4 5 6", 4: "4 5 6", 6: "6",
		7: ""} {
		if got, answer := find(t, path, Query{Since: noon.Add(time.Duration(since) * time.Minute)}); got != want ||
			answer.Left != "" || answer.Unreadable != 0 {
			t.Errorf("since %d: %q, want %q; %+v", since, got, want, answer)
		}
	}
	if got, answer := find(t, path, Query{Limit: 3}); got != "4 5 6" || answer.Left == "" {
		t.Errorf("the newest three are %q, %q", got, answer.Left)
	}
	if got, answer := find(t, path, Query{Limit: 7}); got != "0 1 2 3 4 5 6" || answer.Left != "" {
		t.Errorf("all seven are %q, %q", got, answer.Left)
	}
	if err := os.Remove(path); err != nil { // at the moment of a rotation
		t.Fatal(err)
	}
	if got, _ := find(t, path, Query{}); got != "0 1 2 3 4" {
		t.Errorf("without a current file: %q", got)
	}
}

func TestQueries(t *testing.T) {
	path := write(t, map[string]string{"audit.log": "" +
		line(1,
			`"verb":"delete","user":{"username":"ann"},"objectRef":{"resource":"pods","namespace":"a","name":"p"},`) +
		line(2,
			`"verb":"create","user":{"username":"ann"},"objectRef":{"resource":"pods","namespace":"a","name":"p","subresource":"exec"},`) +
		line(3,
			`"verb":"create","user":{"username":"bob"},"impersonatedUser":{"username":"ann"},"objectRef":{"resource":"deployments","namespace":"b","name":"d","apiGroup":"apps"},`) +
		line(4, `"verb":"post","user":{"username":"a\u0026b"},"requestURI":"/barque/v1/keys",`) +
		line(5,
			`"verb":"create","user":{"username":"eve"},"objectRef":{"resource":"configmaps","namespace":"a","name":"ann"},`),
	})
	for want, q := range map[string]Query{
		"1 2 3 4 5": {}, "1": {Verb: "delete"}, "1 2 3": {User: "ann"}, "1 2": {Resource: "pods"},
		"2": {Resource: "pods/exec"},
		"3": {Resource: "deployments.apps"}, "1 2 5": {Namespace: "a"}, "5": {Name: "ann"}, "4": {User: "a&b"},
		"":      {User: "an"},
		"2 3 5": {Verb: "create"},
	} {
		if got, _ := find(t, path, q); got != want {
			t.Errorf("%+v: %q, want %q", q, got, want)
		}
		if err := q.Check(); err != nil {
			t.Error(err)
		}
		back, err := Parse(
			Query{Since: noon, User: q.User, Verb: q.Verb, Resource: q.Resource, Namespace: q.Namespace, Name: q.Name,
				Limit: 7}.Values())
		q.Since, q.Limit = noon, 7
		if err != nil || back != q {
			t.Errorf("%+v is read as %+v, %v", q, back, err)
		}
	}
}

// TestBadLines: they are counted, and hide no other.
func TestBadLines(t *testing.T) {
	path := write(t,
		map[string]string{"audit.log": line(1, "") + line(2, "")[:50] + "\n" + "legacy text\n" + "\n" + line(3, "") +
			strings.Repeat("x", maxLine+1) + "\n" + line(4, `"big":"`+strings.Repeat("y", 2<<20)+`",`) + line(5, "") +
			line(6, "")[:40]})
	if got, answer := find(t, path, Query{}); got != "1 3 4 5" || answer.Unreadable != 3 {
		t.Errorf("%q, %d unreadable", got, answer.Unreadable)
	}
}

// TestBounds: an answer has a limited number of bytes, and a search ends.
func TestBounds(t *testing.T) {
	big := strings.Builder{}
	for n := range 20 {
		big.WriteString(line(n, `"x":"`+strings.Repeat("y", 1<<20)+`",`))
	}
	path := write(t, map[string]string{"audit.log": big.String(), "audit-2026-11-29T12-00-00.000.log": line(-1, "")})
	got, answer := find(t, path, Query{})
	if got != "13 14 15 16 17 18 19" || answer.Left == "" {
		t.Errorf("%q, %q", got, answer.Left)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errLate)
	late, err := Search(ctx, "s1", path, Query{Limit: 10})
	if err != nil || late.Left != errLate.Error() || len(late.Events) != 0 {
		t.Errorf("%+v, %v", late, err)
	}
}

func TestHandler(t *testing.T) {
	path := write(t, map[string]string{"audit.log": line(1, "")})
	ask := func(path, query string) (int, string) {
		w := httptest.NewRecorder()
		Handler("s1", path)(w, httptest.NewRequest(http.MethodGet, Path+"?"+query, nil))
		return w.Code, w.Body.String()
	}
	good := Query{Since: noon, Limit: 10}.Values().Encode()
	if status, body := ask(path, good); status != http.StatusOK || !strings.Contains(body, `"server":"s1"`) ||
		!strings.Contains(body, `"auditID":"1"`) {
		t.Errorf("%d %s", status, body)
	}
	for query, want := range map[string]int{"": 400, "since=x&limit=1": 400,
		strings.Replace(good, "limit=10", "limit=10001", 1): 400,
		strings.Replace(good, "limit=10", "limit=0", 1):     400} {
		if status, body := ask(path, query); status != want {
			t.Errorf("%q: %d %s", query, status, body)
		}
	}
	if status, body := ask("", good); status != http.StatusNotFound || !strings.Contains(body, "--audit-log-path") {
		t.Errorf("without a file: %d %s", status, body)
	}
}

// TestQueryThatNothingMeets: a verb with a slip must not read as "nobody did it".
func TestQueryThatNothingMeets(t *testing.T) {
	if err := (Query{Verb: "delte"}).Check(); err == nil || !strings.Contains(err.Error(), `verb "delte"`) ||
		!strings.Contains(err.Error(), "deletecollection") {
		t.Error(err)
	}
}
