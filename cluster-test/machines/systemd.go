package machines

import (
	_ "embed"
	"errors"
	"os"
	"path/filepath"
)

// SystemdProgram is where Debian's package systemd has it.
const SystemdProgram = "/lib/systemd/systemd"

//go:embed systemd.sh
var systemdScript string

// Systemd starts systemd, as process 1 of a PID namespace in the machine. Once it has started,
// systemctl works in the machine. There are no units but those of WriteUnit, and targets. Its
// output goes to the machine's log.
func (m *Machine) Systemd() (*Process, error) {
	const script = "/run/systemd.sh"
	if err := os.WriteFile(m.Path(script), []byte(systemdScript), 0o700); err != nil {
		return nil, err
	}
	return m.Serve(script + " " + m.CgroupRoot())
}

// WriteUnit writes a unit of systemd, or a drop-in of one, of a machine on which systemd runs.
func (m *Machine) WriteUnit(name, text string) error {
	file := m.Path(filepath.Join("/etc/systemd/system", name))
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644))
}
