package enroll

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/barque/barque/internal/atomicfile"
)

// Service is the configuration for joining at a machine's start: a token, the arguments of the
// node, and a systemd unit.
type Service struct {
	Role      string
	ConfigDir string // where the token and the arguments are written
	UnitDir   string // directory of the unit, which is written if it does not exist
}

// TokenFile is where the token is written.
func (s Service) TokenFile() string { return filepath.Join(s.ConfigDir, "token") }

// Write writes the configuration, and returns the written files and the command that starts the
// node. A repetition replaces the files, but not an existing unit.
func (s Service) Write(token string, args []string) (files []string, next string, err error) {
	tokenFile, env := s.TokenFile(), filepath.Join(s.ConfigDir, s.Role+".env")
	if err := os.MkdirAll(s.ConfigDir, 0o755); err != nil {
		return nil, "", err
	}
	if err := atomicfile.Write(tokenFile, []byte(token+"\n"), 0o600); err != nil {
		return nil, "", err
	}
	text := fmt.Sprintf("# written by `barque cluster join`; systemd gives these to barque %s\nBARQUE_ARGS=%s\n",
		s.Role, systemdLine(args))
	if err := atomicfile.Write(env, []byte(text), 0o600); err != nil {
		return nil, "", err
	}
	files = []string{tokenFile, env}
	unit := filepath.Join(s.UnitDir, "barque-"+s.Role+".service")
	info, err := os.Stat(s.UnitDir)
	if err != nil || !info.IsDir() { // no systemd here
		return files, "barque " + s.Role + " " + shellLine(args), nil
	}
	next = "systemctl daemon-reload && systemctl enable --now barque-" + s.Role
	if _, err := os.Stat(unit); err == nil {
		return files, next, nil
	}
	program, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	return append(files, unit), next, atomicfile.Write(unit, []byte(unitText(s.Role, program, env)), 0o600)
}

// shellLine are arguments as a shell takes them: --eviction-hard=memory.available<1Gi would read a
// file.
func shellLine(args []string) string {
	words := slices.Clone(args)
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\`$&|;<>()*?[]{}~#!") {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// systemdLine is the value of a variable in an environment file that ExecStart expands to the
// arguments. systemd parses it twice. The file's value is in double quotes as in a shell
// (systemd.exec(5)). Then it is split into words, whose quotes are removed (systemd.service(5)).
func systemdLine(args []string) string {
	words := slices.Clone(args)
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\r\n'\"\\") {
			words[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(w) + `"`
		}
	}
	line := strings.Join(words, " ")
	if !strings.ContainsAny(line, "\"'\\`$\r\n") {
		return line
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", `$`, `\$`).Replace(line) + `"`
}

// unitText is the systemd unit of a node; examples has the same.
func unitText(role, program, env string) string {
	ready, never := "it has registered its node",
		"# Status 2: the arguments are wrong. A restart would fail again.\nRestartPreventExitStatus=2"
	if role == "server" {
		ready, never = "it serves the API",
			"# Status 2: the arguments are wrong; 3: removed from its cluster. A restart would fail again.\nRestartPreventExitStatus=2 3"
	}
	return fmt.Sprintf(`[Unit]
Description=Barque %[1]s
After=network-online.target
Wants=network-online.target
# After any number of failures it is started again.
StartLimitIntervalSec=0

[Service]
# The %[1]s is started when %[4]s. That may wait for other machines.
Type=notify
TimeoutStartSec=infinity
EnvironmentFile=-%[3]s
ExecStart=%[2]s %[1]s $BARQUE_ARGS
# Stopping Barque stops neither containerd's shims nor the pods.
KillMode=process
Delegate=yes
Restart=always
RestartSec=1
%[5]s
TimeoutStopSec=90
# Pods are in /barque of the root group. Beside it, Barque gets its time when they are busy.
Slice=-.slice
CPUWeight=2000
IOWeight=2000
LimitNOFILE=1048576
TasksMax=infinity
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
`, role, program, env, ready, never)
}
