package page

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/barque/barque/cluster-test/browser"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/needs"
)

// shots is the directory for pictures of the views: $PAGE_SHOTS, or one that goes with the test.
func shots(t *testing.T) string {
	dir := os.Getenv("PAGE_SHOTS")
	if dir == "" {
		return t.TempDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

const wide, high = 1280, 860

// open opens the page by a link.
func open(t *testing.T, f *fakeAPI) *browser.Page {
	t.Helper()
	needs.AllTests(t)
	p := browser.Start(t, "").Open(wide, high)
	t.Cleanup(func() {
		for _, fault := range p.Faults() {
			t.Errorf("in the page: %s", fault)
		}
	})
	p.Go(f.URL + "/ui/#" + goodLink)
	p.Shows("Overview", "Healthy")
	return p
}

// TestViews: each view shows its data, in light and dark, and on a phone. Nothing breaks the policy
// of the page.
func TestViews(t *testing.T) {
	f := newAPI(t, 24, 310)
	f.logs = []string{"listening on :8080", "GET /healthz 200", "panic: no database"}
	p, dir := open(t, f), shots(t)
	f.set(func() {
		f.warnings = []clusterstatus.Warning{{Severity: clusterstatus.Attention, Node: "m2",
			Text: "the disk of m2 is 91 % full", Mend: "barque cluster doctor", On: "m2"}}
	})
	for _, view := range []struct {
		at, file string
		texts    []string
	}{
		{"#/overview", "overview", []string{"Warning", "the disk of m2 is 91 % full", "barque cluster doctor",
			"1.43 s", "23 of 24", "not running", "BackOff", "Writes"}},
		{"#/raft", "raft", []string{"Why m1 leads", "nothing was heard of m3 for 1.1s", "m3 → m1", "1.43 s", "140 µs", "61 GiB", "Round trips"}},
		{"#/gossip", "gossip", []string{"24 members", "Agents, 21: 2 not well", "leader"}},
		{"#/nodes", "nodes", []string{"24 nodes", "control-plane", "NotReady"}},
		{"#/nodes/worker-0001", "node", []string{"Ready", "10.42.7.0/24", "7800m of 8", "the kubelet is ready", "Pods here"}},
		{"#/workloads", "workloads", []string{"16 workloads", "Deployment", "2/3", "CronJob", "0 3 * * *"}},
		{"#/pods", "pods", []string{"310 pods", "web-0-00000", "Running"}},
		{"#/pods?q=crashloop", "pods-filter", []string{"4 of 310 pods", "CrashLoopBackOff", "web-5-00005"}},
		{"#/pods/default/web-0-00005", "pod", []string{"CrashLoopBackOff", "exit code 2", "panic: no database", "live", "Back-off restarting"}},
		{"#/events", "events", []string{"2 events", "BackOff", "Pod/web-0-00005"}},
		{"#/changes", "changes", []string{"web-4", "kubectl-client-side-apply", "spec.replicas, spec.template.spec.containers[web].image"}},
		{"#/metrics", "metrics", []string{"Writes", "Goroutines", "m1", "m2", "m3", " MiB"}},
	} {
		t.Run(view.file, func(t *testing.T) {
			if err := p.Eval("void (location.hash = '"+view.at+"')", nil); err != nil {
				t.Fatal(err)
			}
			p.Shows(view.texts...)
			p.Shot(filepath.Join(dir, view.file+".png"))
			p.Dark(true)
			p.Shot(filepath.Join(dir, view.file+"-dark.png"))
			p.Dark(false)
			p.Resize(390, 844)
			p.Await("document.documentElement.scrollWidth <= 390")
			p.Shot(filepath.Join(dir, view.file+"-phone.png"))
			p.Resize(wide, high)
			for _, fault := range p.Faults() {
				t.Errorf("in the page: %s", fault)
			}
		})
	}
}

// at opens a view.
func at(t *testing.T, p *browser.Page, hash string) {
	t.Helper()
	if err := p.Eval("void (location.hash = '"+hash+"')", nil); err != nil {
		t.Fatal(err)
	}
}

// TestLive: rows come, change and go as the watch has it, and lines of a log as they are written.
func TestLive(t *testing.T) {
	f := newAPI(t, 5, 8)
	f.logs = []string{"the first line"}
	p := open(t, f)
	at(t, p, "#/pods")
	p.Shows("8 pods", "web-1-00001")
	const pods = "/api/v1/pods"
	send := func(kind, name string, cells ...any) {
		t.Helper()
		for f.send(kind, pods, "default", name, cells...) == 0 {
			p.Await("true") // the watch begins after the list is shown
		}
	}
	send("ADDED", "aa-new", "aa-new", "0/1", "ContainerCreating", "0", "0s", "<none>", "m1")
	p.Shows("9 pods", "aa-new", "ContainerCreating")
	send("MODIFIED", "aa-new", "aa-new", "1/1", "Running", "0", "1s", "10.42.9.9", "m1")
	p.Shows("10.42.9.9")
	send("DELETED", "aa-new", "aa-new", "1/1", "Terminating", "0", "9s", "10.42.9.9", "m1")
	p.Shows("8 pods")
	p.Await("!document.body.innerText.includes('aa-new')")
	at(t, p, "#/pods/default/web-1-00001")
	p.Shows("the first line")
	f.set(func() { f.logs = append(f.logs, "<b>the second line</b>") })
	f.written <- struct{}{}
	p.Shows("<b>the second line</b>")
	// The views that were left ask for nothing any more.
	at(t, p, "#/metrics")
	p.Shows("Goroutines")
	for over := false; !over; {
		f.set(func() {
			over = true
			for _, path := range f.watchers {
				over = over && path != pods
			}
		})
	}
}

// TestKeys: views, filter, rows and the way back work by keys alone.
func TestKeys(t *testing.T) {
	p := open(t, newAPI(t, 5, 40))
	p.Key("6")
	p.Shows("40 pods")
	p.Key("/")
	p.Await("document.activeElement.id === 'search'")
	for _, key := range "00031" {
		p.Key(string(key))
	}
	p.Shows("1 of 40 pods")
	p.Await("location.hash.includes('q=00031')")
	p.Key("Escape")
	p.Await("document.activeElement.classList.contains('grid')")
	p.Key("ArrowDown")
	p.Await("document.querySelector('.line.at')")
	p.Key("Enter")
	p.Await("location.hash.startsWith('#/pods/kube-system/web-3-00031')")
	p.Shows("Containers")
	p.Key("Escape")
	p.Await("location.hash === '#/pods'")
	p.Key("?")
	p.Await("document.querySelector('dialog[open]')")
	p.Key("Escape")
	p.Await("!document.querySelector('dialog')")
}

// TestLogins: a link is good once and leaves the address; a wrong one is explained; a token works;
// and a session that has ended says so.
func TestLogins(t *testing.T) {
	f, dir := newAPI(t, 3, 3), shots(t)
	p := open(t, f)
	p.Await("location.hash === '#/overview' && !location.href.includes('barque-link')")
	p.Shows("ann@laptop", "reads only")
	var kept bool
	err := p.Eval("document.cookie !== '' || localStorage.length > 0 || history.length > 3", &kept)
	if err != nil || kept {
		t.Errorf("the credential is kept elsewhere than in the tab: %t, %v", kept, err)
	}
	p.Go(f.URL + "/ui/") // the tab keeps its session
	p.Shows("ann@laptop")
	f.set(func() { f.ended = true })
	p.Shows("The session has ended", "By a token")
	p.Shot(filepath.Join(dir, "login.png"))
	p.Dark(true)
	p.Shot(filepath.Join(dir, "login-dark.png"))
	p.Dark(false)
	p.Go("about:blank")
	p.Go(f.URL + "/ui/#" + goodLink)
	p.Shows("This link does not count", "barque ui")
	f.set(func() { f.ended = false })
	token := func(text string) {
		t.Helper()
		if err := p.Eval(`(() => { const i = document.getElementById("token"); i.value = "`+text+`"; i.form.requestSubmit(); })()`, nil); err != nil {
			t.Fatal(err)
		}
	}
	token("wrong")
	p.Shows("That log-in does not count")
	token("pasted")
	p.Shows("with a token", "Overview")
	out := `void [...document.querySelectorAll("nav button")].find(b => b.textContent === "Log out").click()`
	if err := p.Eval(out, nil); err != nil {
		t.Fatal(err)
	}
	p.Shows("By a link")
	var left string
	if err := p.Eval("JSON.stringify(sessionStorage)", &left); err != nil || left != "{}" {
		t.Errorf("after logging out the tab keeps %s, %v", left, err)
	}
}

// TestFewRights: a user sees what it may see, and which rights are missing.
func TestFewRights(t *testing.T) {
	f := newAPI(t, 3, 40)
	p := open(t, f)
	f.set(func() { f.poor = true })
	p.Go("about:blank")
	p.Go(f.URL + "/ui/#/pods")
	p.Shows("You may not read the pods of all namespaces", "Choose a namespace", "cannot get path")
	p.Shot(filepath.Join(shots(t), "few-rights.png"))
	at(t, p, "#/pods?ns=default")
	p.Shows("30 pods")
	at(t, p, "#/raft")
	p.Shows("You may not read the status of the cluster", "barque:status-reader")
}

// TestTroubles: the page says when there is no leader, and when its server is silent, with the ways
// to the others. It goes on by itself when the server is back.
func TestTroubles(t *testing.T) {
	f, dir := newAPI(t, 3, 3), shots(t)
	p := open(t, f)
	f.set(func() { f.leader = "" })
	p.Shows("No leader", "No quorum", "nothing can be written")
	p.Shot(filepath.Join(dir, "no-leader.png"))
	f.set(func() { f.leader = "m2" })
	p.Shows("Healthy", "m2")
	p.Await("!document.body.innerText.includes('No leader')")
	f.CloseClientConnections()
	listener := f.Listener
	_ = listener.Close()
	f.CloseClientConnections()
	p.Shows("No answer", "does not answer for", "Go on at m2")
	p.Await(`document.querySelector('a[href^="https://127.0.0.2:6443/ui/#barque-session."]')`)
	p.Shot(filepath.Join(dir, "no-answer.png"))
}

// TestManyObjects: with 1,000 nodes and 10,000 pods the page lists all of them, holds few elements,
// and finds one.
func TestManyObjects(t *testing.T) {
	f, dir := newAPI(t, 1000, 10000), shots(t)
	p := open(t, f)
	at(t, p, "#/nodes")
	p.Shows("1\u202f000 nodes")
	p.Shot(filepath.Join(dir, "many-nodes.png"))
	at(t, p, "#/pods")
	p.Shows("10\u202f000 pods")
	p.Await("!document.body.innerText.includes('10\u202f000 pods …')")
	p.Await("document.querySelectorAll('.grid .line').length < 80")
	p.Shot(filepath.Join(dir, "many-pods.png"))
	if err := p.Eval("void (document.querySelector('.grid').scrollTop = 1e9)", nil); err != nil {
		t.Fatal(err)
	}
	p.Shows("web-6-09995")
	at(t, p, "#/pods?q=09871")
	p.Shows("1 of 10\u202f000 pods", "web-1-09871")
	at(t, p, "#/gossip")
	p.Shows("1\u202f000 members", "Agents, 997: 2 not well")
	p.Shot(filepath.Join(dir, "many-gossip.png"))
	var heap float64
	if err := p.Eval("performance.memory.usedJSHeapSize / 1048576", &heap); err != nil {
		t.Fatal(err)
	}
	t.Logf("the page's heap has %.0f MiB", heap)
}
