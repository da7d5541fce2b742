// Package browser drives a headless Chromium for tests, by its DevTools protocol.
//
// It waits for what a page does, and collects what goes wrong in it: exceptions, and errors of the
// console, such as breaches of the Content-Security-Policy.
package browser

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/barque/barque/internal/needs"
)

// patience bounds a command, and a wait for what a page does.
const patience = 60 * time.Second

// Browser is a running Chromium.
type Browser struct {
	t    *testing.T
	conn *websocket.Conn

	writing sync.Mutex
	mu      sync.Mutex
	last    int
	waiting map[int]chan answer
	pages   map[string]*Page // by session
}

type answer struct {
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Find returns the path of Chromium. Without one the test is skipped, loudly.
func Find(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	needs.Missing(t, "Chromium (Debian: apt-get install chromium)", "the page at /ui in a browser")
	return ""
}

// Start starts a browser, which ends with the test. It believes every certificate: the tests are
// about the page. netns is the network namespace to run it in; empty is this one.
func Start(t *testing.T, netns string) *Browser {
	t.Helper()
	args := []string{Find(t), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--ignore-certificate-errors", "--no-first-run", "--disable-background-networking", "--disable-sync",
		"--disable-component-update", "--hide-scrollbars", "--force-color-profile=srgb",
		"--remote-debugging-port=0", "--user-data-dir=" + filepath.Join(t.TempDir(), "profile"), "about:blank"}
	if netns != "" {
		args = append([]string{"ip", "netns", "exec", netns}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url := make(chan string, 1)
	t.Cleanup(func() {
		// Its children write into the profile until they have ended, which closes their output.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		for range url {
		}
		_ = cmd.Wait()
	})
	go func() { // ends with the process
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			if _, at, ok := strings.Cut(lines.Text(), "DevTools listening on "); ok {
				url <- at
			}
		}
		close(url)
	}()
	at, ok := <-url
	if !ok {
		t.Fatal("Chromium ended before it listened")
	}
	conn, _, err := websocket.DefaultDialer.Dial(at, nil)
	if err != nil {
		t.Fatalf("Chromium at %s: %v", at, err)
	}
	b := &Browser{t: t, conn: conn, waiting: map[int]chan answer{}, pages: map[string]*Page{}}
	t.Cleanup(func() { _ = conn.Close() })
	go b.read() // ends with the connection
	return b
}

func (b *Browser) read() {
	for {
		var m struct {
			answer
			ID      int             `json:"id"`
			Method  string          `json:"method"`
			Session string          `json:"sessionId"`
			Params  json.RawMessage `json:"params"`
		}
		if b.conn.ReadJSON(&m) != nil {
			return
		}
		b.mu.Lock()
		if waiting := b.waiting[m.ID]; waiting != nil && m.Method == "" {
			delete(b.waiting, m.ID)
			waiting <- m.answer
		} else if p := b.pages[m.Session]; p != nil {
			p.note(m.Method, m.Params)
		}
		b.mu.Unlock()
	}
}

func (b *Browser) call(session, method string, params any, into any) error {
	back := make(chan answer, 1)
	b.mu.Lock()
	b.last++
	id := b.last
	b.waiting[id] = back
	b.mu.Unlock()
	request := map[string]any{"id": id, "method": method, "params": params}
	if session != "" {
		request["sessionId"] = session
	}
	b.writing.Lock()
	err := b.conn.WriteJSON(request)
	b.writing.Unlock()
	if err != nil {
		return err
	}
	select {
	case a := <-back:
		if a.Error != nil {
			return fmt.Errorf("%s: %s", method, a.Error.Message)
		}
		if into == nil {
			return nil
		}
		return json.Unmarshal(a.Result, into)
	case <-time.After(patience + 10*time.Second):
		return fmt.Errorf("%s: Chromium does not answer", method)
	}
}

// Page is a tab.
type Page struct {
	b       *Browser
	session string
	faults  []string // with b.mu held
}

// Open opens a tab of that size in pixels.
func (b *Browser) Open(wide, high int) *Page {
	b.t.Helper()
	var target struct {
		ID string `json:"targetId"`
	}
	b.must(b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target))
	var attached struct {
		Session string `json:"sessionId"`
	}
	b.must(b.call("", "Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &attached))
	p := &Page{b: b, session: attached.Session}
	b.mu.Lock()
	b.pages[p.session] = p
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		p.do(domain+".enable", map[string]any{})
	}
	p.Resize(wide, high)
	return p
}

func (b *Browser) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (p *Page) do(method string, params any) {
	p.b.t.Helper()
	p.b.must(p.b.call(p.session, method, params, nil))
}

// note keeps what went wrong. Requests that fail are a part of what the tests do.
func (p *Page) note(method string, params json.RawMessage) {
	var m struct {
		Entry  struct{ Level, Source, Text, URL string }
		Type   string
		Args   []struct{ Value, Description any }
		Thrown struct {
			Text      string
			Exception struct{ Description string }
		} `json:"exceptionDetails"`
	}
	if json.Unmarshal(params, &m) != nil {
		return
	}
	switch {
	case method == "Runtime.exceptionThrown":
		p.faults = append(p.faults, m.Thrown.Text+" "+m.Thrown.Exception.Description)
	case method == "Log.entryAdded" && m.Entry.Level == "error" && m.Entry.Source != "network":
		p.faults = append(p.faults, m.Entry.Text+" "+m.Entry.URL)
	case method == "Runtime.consoleAPICalled" && (m.Type == "error" || m.Type == "assert"):
		p.faults = append(p.faults, fmt.Sprint(m.Args))
	}
}

// Faults returns what has gone wrong in the page since the last call.
func (p *Page) Faults() []string {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	out := p.faults
	p.faults = nil
	return out
}

// Resize changes the size of the tab. A narrow one is a phone's.
func (p *Page) Resize(wide, high int) {
	p.b.t.Helper()
	p.do("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": wide < 600})
}

// Front brings the tab to the front. One behind another is hidden, and the page rests in it.
func (p *Page) Front() {
	p.b.t.Helper()
	p.do("Page.bringToFront", map[string]any{})
}

// Close closes the tab.
func (p *Page) Close() {
	p.b.t.Helper()
	p.do("Page.close", map[string]any{})
}

// Dark chooses the dark or the light scheme.
func (p *Page) Dark(dark bool) {
	p.b.t.Helper()
	scheme := map[bool]string{true: "dark", false: "light"}[dark]
	p.do("Emulation.setEmulatedMedia",
		map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
}

// Go opens a URL.
func (p *Page) Go(url string) {
	p.b.t.Helper()
	var is struct {
		Error string `json:"errorText"`
	}
	p.b.must(p.b.call(p.session, "Page.navigate", map[string]any{"url": url}, &is))
	if is.Error != "" {
		p.b.t.Fatalf("open %s: %s", url, is.Error)
	}
}

// Eval evaluates an expression, and waits for it if it is a promise.
func (p *Page) Eval(expression string, into any) error {
	var is struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Thrown *struct {
			Text      string
			Exception struct{ Description string }
		} `json:"exceptionDetails"`
	}
	err := p.b.call(p.session, "Runtime.evaluate",
		map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &is)
	if err == nil && is.Thrown != nil {
		err = errors.New(is.Thrown.Text + " " + is.Thrown.Exception.Description)
	}
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(is.Result.Value, into)
}

// Text returns the text that the page shows.
func (p *Page) Text() string {
	var text string
	if err := p.Eval("document.body ? document.body.innerText : ''", &text); err != nil {
		return err.Error()
	}
	return text
}

// Await waits until an expression is true.
func (p *Page) Await(expression string) {
	p.b.t.Helper()
	over := time.Now().Add(patience)
	for {
		var is bool
		err := p.Eval(`new Promise(done => {
			const until = performance.now() + 1000, look = () => {
				let is = false;
				try { is = !!(`+expression+`); } catch {}
				if (is || performance.now() > until) done(is); else setTimeout(look, 20);
			};
			look();
		})`, &is)
		if err == nil && is {
			return
		}
		if time.Now().After(over) {
			p.b.t.Fatalf("the page does not come to %s (%v); faults %v; it shows:\n%s", expression, err, p.Faults(),
				p.Text())
		}
	}
}

// Shows waits until the page shows all of these texts.
func (p *Page) Shows(texts ...string) {
	p.b.t.Helper()
	for _, text := range texts {
		quoted, err := json.Marshal(text)
		p.b.must(err)
		p.Await("document.body.innerText.includes(" + string(quoted) + ")")
	}
}

// Key presses a key, by its name in KeyboardEvent.key.
func (p *Page) Key(key string) {
	p.b.t.Helper()
	event := map[string]any{"type": "keyDown", "key": key, "windowsVirtualKeyCode": codes[key]}
	if len(key) == 1 {
		event["text"] = key
	} else if key == "Enter" {
		event["text"] = "\r"
	}
	p.do("Input.dispatchKeyEvent", event)
	p.do("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "windowsVirtualKeyCode": codes[key]})
}

// codes are those of the keys for which the browser itself acts.
var codes = map[string]int{"Enter": 13, "Escape": 27}

// Shot writes a picture of the page to a file, whose directory exists.
func (p *Page) Shot(file string) {
	p.b.t.Helper()
	var is struct {
		Data string `json:"data"`
	}
	p.b.must(p.b.call(p.session, "Page.captureScreenshot", map[string]any{"format": "png"}, &is))
	data, err := base64.StdEncoding.DecodeString(is.Data)
	p.b.must(err)
	p.b.must(os.WriteFile(file, data, 0o644))
}
