# Every habit of this project by name. `make help` lists them.
#
# Pinned tools run by `go run tool@version`, so that nothing has to be installed and every
# machine has the same version. scripts/deps.sh fetches glslc and the drivers of the tests.

GO    ?= go
BUILD := build
DEPS  := scripts/deps.sh

staticcheck := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# The wrappers of deps.sh. Another glslc can be given on the command line.
tools     = $(shell $(DEPS) bin)
GLSLC     ?= $(tools)/glslc
SPIRV_VAL ?= $(tools)/spirv-val

# go vet and staticcheck descend from ./..., gofmt has to be told.
go_files = $(shell git ls-files -co --exclude-standard -- '*.go')

.DEFAULT_GOAL := help
.PHONY: help bench race test shaders shaders-check cuda cuda-check golden gpu-bundle fmt lint check deps FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

bench: $(BUILD)/vkattn ## benchmark on the best device present, the CPU if there is none (ARGS=...)
	$(BUILD)/vkattn bench $(ARGS)

.PHONY: verify
verify: $(BUILD)/vkattn ## compare every implementation on the device with the others (ARGS=...)
	$(BUILD)/vkattn verify $(ARGS)

race: $(BUILD)/vkattn ## benchmark against PyTorch's attention on an NVIDIA GPU (RACE=entries, see scripts/race.sh)
	VKATTN=$(BUILD)/vkattn scripts/race.sh $(RACE)

# go build knows better than make whether anything changed.
$(BUILD)/vkattn: FORCE
	$(GO) build -o $@ ./cmd/vkattn

# test.sh fetches the drivers while Go compiles. docs/testing.md says what the two targets run.
.PHONY: test-full
test: ## fetch drivers into the user's cache, then run the tests on each of them
	VKATTN_TEST_LEVEL=default scripts/test.sh --fetch

test-full: ## what make test leaves out: the other share of the tables, stress, fuzz
	VKATTN_TEST_LEVEL=full scripts/test.sh --fetch

.PHONY: platforms test-platforms
platforms: ## build for linux, windows and darwin on amd64 and arm64 without cgo, for windows/amd64 and linux/arm64 with cgo
	scripts/platforms.sh build

test-platforms: ## the release twice, platforms, go vet for each, the tests without cgo, tier cpu of arm64 under QEMU, Windows under Wine, compilers of other GPUs
	scripts/platforms.sh release build vet native arm64 archives windows compilers

c_flags = -s -w -extldflags "-Wl,--version-script=$(CURDIR)/bindings/c/vkattn.map -Wl,-soname,libvkattn.so"
.PHONY: c
c: ## build the C library (Linux): build/c/libvkattn.so and vkattn.h, see docs/c.md
	$(GO) build -buildmode=c-shared -ldflags='$(c_flags)' -o $(BUILD)/c/libvkattn.so ./bindings/c
	rm -f $(BUILD)/c/libvkattn.h
	cp bindings/c/vkattn.h $(BUILD)/c

.PHONY: python
python: c ## pack the Python package (Linux): build/python/vkattn-*.whl, see docs/python.md
	scripts/release.sh licences ./bindings/c >$(BUILD)/c/LICENSES.txt
	$(CC) -std=gnu99 -O2 -Wall -fPIC -fexceptions -shared -o $(BUILD)/c/libvkattn_torch.so bindings/python/vkattn/torch.c -lpthread
	python3 bindings/python/wheel.py $(BUILD)/c $(BUILD)/python

.PHONY: release
release: ## pack the command for every platform into build/release, reproducibly, from a tree without changes
	scripts/release.sh build

deps: ## fetch glslc and the CPU Vulkan drivers
	$(DEPS) all

shaders: ## compile the GLSL to the committed SPIR-V
	@$(DEPS) glslc
	GLSLC='$(GLSLC)' $(GO) run ./shaders/build -glslc '$(GLSLC)' -spirv-val '$(SPIRV_VAL)'

shaders-check: ## check that the committed SPIR-V is what the GLSL compiles to
	@$(DEPS) glslc
	GLSLC='$(GLSLC)' $(GO) run ./shaders/build -check -glslc '$(GLSLC)' -spirv-val '$(SPIRV_VAL)'
	GLSLC='$(GLSLC)' SPIRV_VAL='$(SPIRV_VAL)' $(GO) test -count=1 ./shaders/build

# Any nvcc of the machine can compile. cuda-check compiles again only with the same version.
nvcc = $(or $(NVCC),$(if $(CUDA_HOME),$(CUDA_HOME)/bin/nvcc),$(shell command -v nvcc),$(wildcard $(tools)/nvcc))

cuda: ## compile the CUDA kernels to the committed PTX and cubins
	$(if $(nvcc),,@$(DEPS) nvcc)
	$(GO) run ./cudapath/kernels/build -nvcc '$(or $(nvcc),$(tools)/nvcc)'

cuda-check: ## check that the committed PTX and cubins are what the CUDA kernels compile to
	$(GO) run ./cudapath/kernels/build -check -nvcc '$(nvcc)'

golden: ## regenerate the golden outputs of tests/golden
	$(GO) test ./tests -run Golden -count=1 -update

results := docs/results
.PHONY: pictures
pictures: $(BUILD)/vkattn ## draw the pictures of README and docs/results from the committed rows
	$(BUILD)/vkattn report $(results)/2026-11-27-h200/cuda-forward-race.jsonl.gz --kind speed --plot docs/img/forward.svg \
		--caption 'Forward, f16, NVIDIA H200. Within a panel all took turns in one process, each round in another order.'
	$(BUILD)/vkattn report $(results)/2026-11-22-h200/decode.jsonl.gz --kind bandwidth --plot docs/img/decode.svg \
		--series coopmat2,flash,cudnn,torch-copy --caption 'Decode, f16, NVIDIA H200.'
	$(BUILD)/vkattn report $(results)/2026-11-20-h200/ladder.jsonl --kind ladder --plot docs/img/ladder.svg \
		--caption 'Forward, f16, NVIDIA H200.'

# Any Chromium can take the screenshots. Without one deps.sh fetches it.
.PHONY: report-check
report-check: $(BUILD)/vkattn ## take screenshots of a report in headless Chromium (build/report; fetches 100 MB once)
	$(if $(CHROMIUM),,@$(DEPS) chromium)
	CHROMIUM='$(or $(CHROMIUM),$(tools)/chromium)' scripts/report-check.sh $(BUILD)/vkattn $(BUILD)/report

.PHONY: report-picture
report-picture: report-check ## take the picture of a report in docs/command.md from the committed rows
	cp $(BUILD)/report/picture.png docs/img/report.png

.PHONY: man
man: $(BUILD)/vkattn ## write the manual pages and completion scripts of the command to build/man and build/completion
	$(BUILD)/vkattn man $(BUILD)/man
	mkdir -p $(BUILD)/completion
	for shell in bash zsh fish powershell; do $(BUILD)/vkattn completion $$shell >$(BUILD)/completion/vkattn.$$shell || exit 1; done

gpu-bundle: ## make build/gpu: tests and benchmarks for a machine without Go (ARGS=..., see scripts/gpu-bundle.sh)
	-@$(DEPS) lavapipe-old
	-@$(DEPS) egl
	scripts/gpu-bundle.sh $(ARGS) $(BUILD)/gpu

.PHONY: module
module: ## give the module another path everywhere (MODULE=host/owner/vkattn)
	@scripts/module.sh $(MODULE)

.PHONY: sources
sources: ## count the tracked source by class
	@scripts/sources.sh

fmt: ## format the Go code
	gofmt -w $(go_files)

lint: ## gofmt, go vet, for windows too, and staticcheck
	@unformatted=$$(gofmt -l $(go_files) </dev/null); if [ -n "$$unformatted" ]; then echo "not formatted:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	CGO_ENABLED=0 GOOS=windows $(GO) vet ./...
	$(GO) run $(staticcheck) ./...

check: lint shaders-check cuda-check test ## everything a change has to pass
	git diff --exit-code
