package machine

import (
	"path/filepath"
	"strings"
)

// Roles that a machine can have.
const (
	Server = "server"
	Agent  = "agent"
)

// Roles are all of them.
var Roles = []string{Server, Agent}

// ConfigDir is the directory of settings that a node reads without a flag.
const ConfigDir = "/etc/barque"

// unitText is the systemd unit of a node. Packages, install and cluster join have the same one,
// which is that of examples. The file of the environment is one of earlier versions, in which
// cluster join wrote the settings, and a place for flags that are given once.
func unitText(role, program, configDir string) string {
	ready, never := "it has registered its node",
		"# Status 2: the arguments are wrong. A restart would fail again.\nRestartPreventExitStatus=2"
	if role == Server {
		ready, never = "it serves the API",
			"# Status 2: the arguments are wrong; 3: removed from its cluster. A restart would fail again.\nRestartPreventExitStatus=2 3"
	}
	return strings.NewReplacer("ROLE", role, "PROGRAM", program, "CONFIG", configFlag(configDir), "ENV",
		filepath.Join(configDir, role+".env"), "READY", ready, "NEVER", never).Replace(`[Unit]
Description=Barque ROLE
After=network-online.target
Wants=network-online.target
# After any number of failures it is started again.
StartLimitIntervalSec=0

[Service]
# The ROLE is started when READY. That may wait for other machines.
Type=notify
TimeoutStartSec=infinity
# Flags that are no settings of the machine may be in this file.
Environment=BARQUE_ARGS=
EnvironmentFile=-ENV
ExecStart=PROGRAM ROLECONFIG $BARQUE_ARGS
# Stopping Barque stops neither containerd's shims nor the pods.
KillMode=process
Delegate=yes
Restart=always
RestartSec=1
NEVER
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
`)
}

// configFlag names the file of settings where it is not the usual one.
func configFlag(configDir string) string {
	if configDir == ConfigDir {
		return ""
	}
	return " --config " + filepath.Join(configDir, "config.yaml")
}

// scriptText is the script of a node for OpenRC; examples has the same.
func scriptText(role, program, configDir string) string {
	return strings.NewReplacer("ROLE", role, "PROGRAM", program, "CONFIG", configFlag(configDir)).Replace(`#!/sbin/openrc-run

description="Barque ROLE"
supervisor=supervise-daemon
command="PROGRAM"
# Flags that are no settings of the machine may be in /etc/conf.d/barque-ROLE, as BARQUE_ARGS.
command_args="ROLECONFIG ${BARQUE_ARGS:-}"
pidfile="/run/${RC_SVCNAME}.pid"
output_log="/var/log/${RC_SVCNAME}.log"
error_log="/var/log/${RC_SVCNAME}.log"
# After any number of failures it is started again.
respawn_delay=5
respawn_max=0
# Stopping Barque stops neither containerd's shims nor the pods.
rc_cgroup_cleanup="no"
retry="TERM/90/KILL/5"
rc_ulimit="-n 1048576"
oom_score_adj="-900"

depend() {
	need net localmount cgroups
	use dns
	after firewall
}

# A start with wrong settings would fail again and again.
start_pre() {
	"$command" config show ${command_args} >/dev/null
}
`)
}
