package page

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

//go:embed assets
var assets embed.FS

// Prefix is the path of the page.
const Prefix = "/ui"

// policy is the Content-Security-Policy. Nothing but the page's own files runs, and it speaks to
// its own server alone. No text becomes markup: trusted types have no policy that would make it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// index is the file that the others are loaded by.
const index = "index.html"

// hashMark stands in the index for the hash of all files.
const hashMark = "HASH"

// file is a file as it is sent.
type file struct {
	plain, packed []byte
	kind          string
}

// files are the page's files by their names, compressed once, and the hash of all of them. The hash
// is a part of the other files' paths, so that browsers may keep them for ever.
var files = sync.OnceValues(func() (map[string]file, string) {
	plain, sum := map[string][]byte{}, sha256.New()
	err := fs.WalkDir(assets, "assets", func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := assets.ReadFile(at)
		name := strings.TrimPrefix(at, "assets/")
		plain[name] = data
		sum.Write([]byte(name + "\x00" + strconv.Itoa(len(data)) + "\x00"))
		sum.Write(data)
		return err
	})
	if err != nil {
		panic(err) // a file that is embedded can be read
	}
	hash := base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:9])
	plain[index] = bytes.ReplaceAll(plain[index], []byte(hashMark), []byte(hash))
	all := map[string]file{}
	for name, data := range plain {
		var packed bytes.Buffer
		w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		if err != nil {
			panic(err) // the level is a constant
		}
		_, _ = w.Write(data) // a buffer takes all
		_ = w.Close()
		all[name] = file{data, packed.Bytes(), kinds[path.Ext(name)]}
	}
	return all, hash
})

var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml",
}

// Files serves the files below Prefix, to everybody: they have no data.
func Files() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "only GET is served here", http.StatusMethodNotAllowed)
			return
		}
		if r.URL.Path == Prefix {
			header.Set("Location", Prefix+"/")
			w.WriteHeader(http.StatusMovedPermanently)
			return
		}
		all, hash := files()
		name := strings.TrimPrefix(r.URL.Path, Prefix+"/")
		if name == "" {
			header.Set("Cache-Control", "no-cache")
			name = index
		} else {
			rest, ok := strings.CutPrefix(name, hash+"/")
			if _, known := all[rest]; !ok || !known || rest == index {
				header.Set("Cache-Control", "no-store")
				http.Error(w, "the page has no such file; it may be another version's: load "+Prefix+"/ again",
					http.StatusNotFound)
				return
			}
			header.Set("Cache-Control", "public, max-age=31536000, immutable")
			name = rest
		}
		send(w, r, all[name])
	})
}

func send(w http.ResponseWriter, r *http.Request, f file) {
	header, data := w.Header(), f.plain
	header.Set("Content-Type", f.kind)
	header.Set("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		header.Set("Content-Encoding", "gzip")
		data = f.packed
	}
	header.Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodGet {
		_, _ = w.Write(data) // an error is the client's leaving
	}
}
