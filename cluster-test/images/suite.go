package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Suite has the parts of the stand-ins for the images of Kubernetes' e2e suite.
type Suite struct {
	Images []string // all images that the suite may use, as `e2e.test --list-images` prints them
	// Programs is the directory with agnhost, consume-cpu, etcd, nonewprivs, pause,
	// regression-issue-74839, resource-consumer and sample-apiserver.
	Programs string
	Source   string // directory of the module k8s.io/kubernetes
	Cache    string // directory for products that take long to make
}

// standIn is how an image is made.
type standIn struct {
	layers []string
	config v1.Config
}

// standIns by repository. An image of the suite that is not here has no stand-in.
var standIns = map[string]standIn{
	"build-image/distroless-iptables":   {[]string{"shell", "tools"}, shellConfig},
	"e2e-test-images/agnhost":           {[]string{"shell", "tools", "agnhost"}, agnhostConfig("pause")},
	"e2e-test-images/busybox":           {[]string{"shell"}, shellConfig},
	"e2e-test-images/glibc-dns-testing": {[]string{"shell", "tools"}, shellConfig},
	"e2e-test-images/ipc-utils":         {[]string{"shell", "tools"}, shellConfig},
	"e2e-test-images/kitten":            {[]string{"shell", "agnhost", "kitten"}, agnhostConfig("test-webserver")},
	"e2e-test-images/nautilus": {[]string{"shell", "agnhost", "nautilus"},
		agnhostConfig("test-webserver")},
	"e2e-test-images/nginx": {[]string{"shell", "nginx", "welcome"}, nginxConfig(suiteVersion)},
	"e2e-test-images/nonewprivs": {[]string{"shell", "nonewprivs"},
		v1.Config{Cmd: []string{"nnp"}, Env: []string{searchPath}}},
	"e2e-test-images/nonroot": {[]string{"shell"},
		v1.Config{Cmd: []string{"sh"}, Env: []string{searchPath}, User: "1234"}},
	"e2e-test-images/regression-issue-74839": {[]string{"shell", "regression-issue-74839"},
		v1.Config{Entrypoint: []string{"/regression-issue-74839"}, Env: []string{searchPath}}},
	"e2e-test-images/resource-consumer": {[]string{"shell", "tools", "resource-consumer"},
		v1.Config{Entrypoint: []string{"/consumer"}, Env: []string{searchPath}}},
	"e2e-test-images/sample-apiserver": {[]string{"shell", "sample-apiserver"},
		v1.Config{Entrypoint: []string{"/sample-apiserver"}, Env: []string{searchPath}}},
	"etcd": {[]string{"shell", "etcd"},
		v1.Config{Cmd: []string{"etcd"}, Env: []string{searchPath}}},
	"sig-storage/hostpathplugin": {[]string{"shell", "tools", "hostpathplugin"},
		v1.Config{Entrypoint: []string{"/hostpathplugin"}, Env: []string{searchPath}}},
	"pause": {[]string{"pause"},
		v1.Config{Entrypoint: []string{"/pause"}, Env: []string{searchPath}, User: "65535:65535"}},
}

// suiteVersion is the version that the stand-in for nginx reports, under each of its tags.
const suiteVersion = "e2e"

var shellConfig = v1.Config{Cmd: []string{"sh"}, Env: []string{searchPath}}

func agnhostConfig(command string) v1.Config {
	return v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{command}, Env: []string{searchPath},
		WorkingDir: "/"}
}

// ForSuite returns stand-ins for those of the suite's images that its conformance specs use.
func ForSuite(ctx context.Context, s Suite) (map[name.Tag]v1.Image, error) {
	layers, err := s.layers(ctx)
	if err != nil {
		return nil, err
	}
	return standInImages(s.Images, layers)
}

func standInImages(refs []string, layers map[string]v1.Layer) (map[name.Tag]v1.Image, error) {
	out, made := map[name.Tag]v1.Image{}, map[string]bool{}
	for _, ref := range refs {
		tag, err := name.NewTag(ref)
		if err != nil {
			return nil, err
		}
		recipe, ok := standIns[tag.RepositoryStr()]
		if !ok {
			continue
		}
		var stack []v1.Layer
		for _, l := range recipe.layers {
			stack = append(stack, layers[l])
		}
		if out[tag], err = image(recipe.config, stack...); err != nil {
			return nil, fmt.Errorf("make the stand-in for %s: %w", ref, err)
		}
		made[tag.RepositoryStr()] = true
	}
	for repository := range standIns {
		if !made[repository] {
			return nil,
				fmt.Errorf("the suite has no image %s any more: take its stand-in out, or rename it", repository)
		}
	}
	return out, nil
}

// toolSet is Debian's programs for the commands that agnhost's image and Alpine, its base, have
// beside busybox, and for stress, which consumes memory in resource-consumer's.
var toolSet = packageSet{
	packages: []string{
		"bash", "bind9-dnsutils", "bind9-libs", "conntrack", "curl", "iproute2", "libc-bin", "netcat-openbsd", "socat",
		"stress", "util-linux",
	},
	trees: map[string]func(context.Context, string) (tree, error){toolsLayer: toolsTree},
}

const toolsLayer = "tools.tar.gz"

// layers returns all layers, by the names that standIns uses.
func (s Suite) layers(ctx context.Context) (map[string]v1.Layer, error) {
	out := map[string]v1.Layer{}
	for _, cached := range []struct {
		name string
		set  packageSet
		file string
	}{{"nginx", basic, nginxLayer}, {"tools", toolSet, toolsLayer}} {
		dir, err := cached.set.layers(ctx, s.Cache)
		if err != nil {
			return nil, err
		}
		if out[cached.name], err = tarball.LayerFromFile(filepath.Join(dir, cached.file)); err != nil {
			return nil, err
		}
	}
	shell, err := suiteShell(ctx, s.Cache)
	if err != nil {
		return nil, err
	}
	trees := map[string]tree{"shell": shell}
	for name, make := range map[string]func(shell tree) (tree, error){
		"agnhost": s.agnhost, "etcd": s.etcd, "kitten": s.kitten, "nautilus": s.nautilus, "nonewprivs": s.nonewprivs,
		"pause":          s.pause,
		"hostpathplugin": hostpathplugin, "regression-issue-74839": s.regressionIssue74839,
		"resource-consumer": s.resourceConsumer, "sample-apiserver": s.sampleAPIServer,
	} {
		if trees[name], err = make(shell); err != nil {
			return nil, fmt.Errorf("make the layer %s: %w", name, err)
		}
	}
	for name, t := range trees {
		if out[name], err = t.layer(); err != nil {
			return nil, err
		}
	}
	out["welcome"], err = welcome(suiteVersion)
	return out, err
}

// suiteShell is busybox, with the files and directories that Alpine has.
func suiteShell(ctx context.Context, cache string) (tree, error) {
	dir, err := buildBusybox(ctx, cache)
	if err != nil {
		return nil, err
	}
	t, err := busyboxTree(ctx, dir)
	if err != nil {
		return nil, err
	}
	t.link("usr/bin/env", "/bin/env")
	t.file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n")
	t.file("etc/group", "root:x:0:root\nnobody:x:65534:\n")
	t.file("etc/nsswitch.conf", "hosts: files dns\n")
	for _, d := range []string{"dev", "home", "proc", "run", "sys", "usr/local/bin", "var/run"} {
		t.dir(d, 0o755)
	}
	t.dir("var/tmp", 0o777|fs.ModeSticky)
	return t, nil
}

// toolsTree has the programs where they come before busybox's applets on the PATH.
func toolsTree(_ context.Context, root string) (tree, error) {
	t := tree{}
	if err := t.take(root, isLibrary); err != nil {
		return nil, err
	}
	packaged := map[string]string{"nc": "nc.openbsd"}
	for _, program := range []string{
		"bash", "conntrack", "curl", "dig", "getent", "ipcmk", "ipcrm", "ipcs", "nc", "nslookup", "nsenter", "socat",
		"ss", "stress", "unshare",
	} {
		file := program
		if packaged[program] != "" {
			file = packaged[program]
		}
		data, err := readFirst(root, "usr/bin/"+file, "bin/"+file, "usr/sbin/"+file, "sbin/"+file)
		if err != nil {
			return nil, fmt.Errorf("no package brings %s: %w", program, err)
		}
		t["usr/bin/"+program] = entry{mode: 0o755, data: data}
		if err := t.checkLibraries("usr/bin/" + program); err != nil {
			return nil, err
		}
	}
	t.link("bin/bash", "/usr/bin/bash")
	return t, nil
}

// readFirst reads the first of the files that exists.
func readFirst(root string, names ...string) (data []byte, err error) {
	for _, n := range names {
		if data, err = os.ReadFile(filepath.Join(root, n)); err == nil {
			return data, nil
		}
	}
	return nil, err
}

// agnhost has the files and users of its Dockerfile.
func (s Suite) agnhost(shell tree) (tree, error) {
	t := tree{}
	if err := t.program("agnhost", filepath.Join(s.Programs, "agnhost")); err != nil {
		return nil, err
	}
	t.link("agnhost-2", "agnhost")
	t.dir("uploads", 0o755)
	for _, file := range []string{"localhost.crt", "localhost.key"} {
		data, err := os.ReadFile(filepath.Join(s.Source, "test/images/agnhost/porter", file))
		if err != nil {
			return nil, err
		}
		t.file(file, string(data))
	}
	t.file("etc/passwd", string(shell["etc/passwd"].data)+
		"user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n")
	t.file("etc/group", string(shell["etc/group"].data)+
		"user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n")
	return t, nil
}

// kitten is also mounted as an image volume, and then its base is asked for.
func (s Suite) kitten(tree) (tree, error) {
	t := tree{}
	t.file("etc/os-release", "NAME=\"Alpine Linux\"\n")
	return t, t.take(filepath.Join(s.Source, "test/images/kitten/html"), func(string) bool { return true })
}

func (s Suite) nautilus(tree) (tree, error) {
	t := tree{}
	return t, t.take(filepath.Join(s.Source, "test/images/nautilus/html"), func(string) bool { return true })
}

// nonewprivs has a program that runs as root for any caller.
func (s Suite) nonewprivs(tree) (tree, error) {
	t := tree{}
	err := t.program("usr/local/bin/nnp", filepath.Join(s.Programs, "nonewprivs"))
	nnp := t["usr/local/bin/nnp"]
	nnp.mode |= fs.ModeSetuid | fs.ModeSetgid
	t["usr/local/bin/nnp"] = nnp
	return t, err
}

func (s Suite) pause(tree) (tree, error) {
	t := tree{}
	return t, t.program("pause", filepath.Join(s.Programs, "pause"))
}

func (s Suite) etcd(tree) (tree, error) {
	t := tree{}
	return t, t.program("usr/local/bin/etcd", filepath.Join(s.Programs, "etcd"))
}

// sampleAPIServer is of the suite's own version, as all programs are. The image has an older one.
func (s Suite) sampleAPIServer(tree) (tree, error) {
	t := tree{}
	return t, t.program("sample-apiserver", filepath.Join(s.Programs, "sample-apiserver"))
}

func (s Suite) regressionIssue74839(tree) (tree, error) {
	t := tree{}
	return t, t.program("regression-issue-74839", filepath.Join(s.Programs, "regression-issue-74839"))
}

// resourceConsumer uses CPU time by a program of its own, and memory by stress.
func (s Suite) resourceConsumer(tree) (tree, error) {
	t := tree{}
	return t, errors.Join(
		t.program("consumer", filepath.Join(s.Programs, "resource-consumer")),
		t.program("consume-cpu/consume-cpu", filepath.Join(s.Programs, "consume-cpu")))
}

// hostpathplugin is the proxy mode of that driver alone: a connection to its socket waits for one
// to its port. In this mode the suite is the driver. The module proxy has no source of the whole.
func hostpathplugin(tree) (tree, error) {
	t := tree{}
	t["hostpathplugin"] = entry{mode: 0o755, data: []byte(proxyMode)}
	return t, nil
}

const proxyMode = `#!/bin/sh
for argument; do
	case $argument in
	-endpoint=* | --endpoint=*) socket=${argument#*=} ;;
	-proxy-endpoint=tcp://:* | --proxy-endpoint=tcp://:*) port=${argument##*:} ;;
	esac
done
if [ -z "$socket" ] || [ -z "$port" ]; then
	echo "this stand-in for hostpathplugin needs -endpoint and -proxy-endpoint, got: $*" >&2
	exit 1
fi
exec socat "UNIX-LISTEN:$socket,fork,unlink-early" "TCP-LISTEN:$port,reuseaddr,reuseport"
`

// program copies one from the disk.
func (t tree) program(name, file string) error {
	data, err := os.ReadFile(file)
	t[name] = entry{mode: 0o755, data: data}
	return err
}
