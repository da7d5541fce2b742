package nodelogs

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func logs(t *testing.T) string {
	t.Helper()
	outside, dir := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(outside, "shadow"): "secret", filepath.Join(dir, "syslog"): "a line\n",
		filepath.Join(dir, "pods/x/0.log"): "of a pod\n", filepath.Join(dir, "web/web.log"): "of web\n",
		filepath.Join(dir, "db.log"): "of db\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"absolute": filepath.Join(outside, "shadow"), "upwards": "../" + filepath.Base(outside) + "/shadow",
		"tree":  outside,
		"x.log": filepath.Join(dir, "pods/x/0.log"), "y.log": "pods/x/0.log",
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func get(h http.Handler, target string) (int, string) {
	w := httptest.NewRecorder()
	http.StripPrefix("/logs", h).ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
	return w.Code, w.Body.String()
}

func TestFilesAndNothingElse(t *testing.T) {
	h := Handler(logs(t), false)
	for target, want := range map[string]string{
		"/logs/": "syslog", "/logs/syslog": "a line\n", "/logs/pods/x/0.log": "of a pod\n",
		"/logs/x.log": "of a pod\n", "/logs/y.log": "of a pod\n", "/logs/syslog?query=web": "a line\n",
	} {
		if code, body := get(h, target); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", target, code, body)
		}
	}
	for _, target := range []string{"/logs/absolute", "/logs/upwards", "/logs/tree/shadow", "/logs/../shadow",
		"/logs/pipe", "/logs/none"} {
		if code, body := get(h, target); code < 300 || strings.Contains(body, "secret") {
			t.Errorf("%s: %d %s", target, code, body)
		}
	}
}

func TestQueries(t *testing.T) {
	h := Handler(logs(t), true)
	for target, want := range map[string]struct {
		code int
		body string
	}{
		"/logs/":                                         {200, "syslog"},
		"/logs/syslog":                                   {200, "a line\n"},
		"/logs/?query=/syslog":                           {200, "a line\n"},
		"/logs/?query=no-such-unit-web":                  {200, "log not found for no-such-unit-web\n"},
		"/logs/?query=db":                                {200, "of db\n"},
		"/logs/?query=web":                               {200, "of web\n"},
		"/logs/?query=web&query=db":                      {200, "of web\nof db\n"},
		"/logs/?query=db&tailLines=5":                    {200, "the journal does not know db"},
		"/logs/syslog?query=db":                          {406, "path not allowed"},
		"/logs/?query=%20":                               {400, "may not be empty"},
		"/logs/?tailLines=5":                             {400, "may not be empty"},
		"/logs/?query=/a&query=/b":                       {400, "more than one file"},
		"/logs/?query=/a&query=b":                        {400, "a file and service"},
		"/logs/?query=/a&tailLines=1":                    {400, "file with options"},
		"/logs/?query=-x":                                {400, "no service has"},
		"/logs/?query=a%3Bb":                             {400, "no service has"},
		"/logs/?query=a&query=b&query=c&query=d&query=e": {400, "at most 4"},
		"/logs/?query=a&sinceTime=yesterday":             {400, "sinceTime"},
		"/logs/?query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z": {400, "must be after"},
		"/logs/?query=a&boot=1":           {400, "boot"},
		"/logs/?query=a&tailLines=100001": {400, "tailLines"},
		"/logs/?query=a&pattern=(":        {400, "pattern"},
		"/logs/?query=../shadow":          {404, ""},
		"/logs/?query=/absolute":          {403, ""},
	} {
		if code, body := get(h, target); code != want.code || !strings.Contains(body, want.body) {
			t.Errorf("%s: %d %s; want %d %s", target, code, body, want.code, want.body)
		}
	}
}

func TestArgumentsOfTheJournal(t *testing.T) {
	values, err := url.ParseQuery(
		"query=web&sinceTime=2026-01-02T03:04:05%2B01:00&untilTime=2026-01-03T03:04:05Z&tailLines=7&boot=-1&pattern=a b")
	if err != nil {
		t.Fatal(err)
	}
	q, err := parse(values)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"--utc", "--no-pager", "--output=short-precise", "--since=2026-01-02 02:04:05 UTC",
		"--until=2026-01-03 03:04:05 UTC",
		"--pager-end", "--lines=7", "--unit=web", "--grep=a b", "--boot=-1"}
	if got := q.arguments(q.services); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
