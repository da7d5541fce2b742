package page

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

func fetch(t *testing.T, method, at, encoding string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, at, nil)
	r.Header.Set("Accept-Encoding", encoding)
	w := httptest.NewRecorder()
	Files().ServeHTTP(w, r)
	return w.Result()
}

// TestFiles: every file that the index names is served, compressed, and may be kept for ever. The
// index may not, and every answer has the policy.
func TestFiles(t *testing.T) {
	index := fetch(t, "GET", "/ui/", "")
	text, err := io.ReadAll(index.Body)
	if err != nil || index.StatusCode != 200 || index.Header.Get("Cache-Control") != "no-cache" ||
		bytes.Contains(text, []byte(hashMark)) {
		t.Fatalf("the index: %d, %v, %s", index.StatusCode, index.Header, text)
	}
	all, _ := files()
	named, total := map[string]bool{"index.html": true}, len(all["index.html"].packed)
	for _, m := range regexp.MustCompile(`(?:href|src)="([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
		got := fetch(t, "GET", "/ui/"+m[1], "gzip, br")
		if got.StatusCode != 200 || got.Header.Get("Content-Encoding") != "gzip" ||
			!strings.Contains(got.Header.Get("Cache-Control"), "immutable") || got.Header.Get("Content-Type") == "" {
			t.Errorf("%s: %d, %v", m[1], got.StatusCode, got.Header)
			continue
		}
		packed, err := gzip.NewReader(got.Body)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(packed)
		if err != nil || !bytes.Equal(plain, all[path.Base(m[1])].plain) {
			t.Errorf("%s is another file when it is compressed: %v", m[1], err)
		}
		named[path.Base(m[1])] = true
	}
	for name, f := range all {
		if !named[name] {
			t.Errorf("the index does not name %s, so that it is loaded late", name)
		}
		total += len(f.packed)
	}
	if most := 200 << 10; total > most {
		t.Errorf("the files have %d bytes compressed, more than %d", total, most)
	}
	t.Logf("%d files, %d bytes compressed", len(all), total)
}

func TestPolicyOfFiles(t *testing.T) {
	for at, want := range map[string]int{"/ui": 301, "/ui/": 200, "/ui/page.css": 404, "/ui/other/page.css": 404,
		"/ui/../../etc/passwd": 404} {
		got := fetch(t, "GET", at, "")
		if got.StatusCode != want {
			t.Errorf("%s: status %d, want %d", at, got.StatusCode, want)
		}
		for _, part := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'",
			"require-trusted-types-for 'script'"} {
			if !strings.Contains(got.Header.Get("Content-Security-Policy"), part) {
				t.Errorf("%s: the policy lacks %s", at, part)
			}
		}
		if strings.Contains(got.Header.Get("Content-Security-Policy"), "unsafe") ||
			got.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", at, got.Header)
		}
	}
	if got := fetch(t, "POST", "/ui/", ""); got.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", got.StatusCode)
	}
}

// TestFilesKeepTheirPolicy: the files have nothing that the policy forbids, and ask no other
// server.
func TestFilesKeepTheirPolicy(t *testing.T) {
	all, _ := files()
	for name, f := range all {
		for _, banned := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
			"new Function", "localStorage", "document.cookie", "style=\"", "onclick=\"", "<style", "http://", "https://"} {
			text := strings.ReplaceAll(string(f.plain), "http://www.w3.org/2000/svg", "") // a name, which nobody asks
			if strings.Contains(text, banned) {
				t.Errorf("%s has %s", name, banned)
			}
		}
	}
}
