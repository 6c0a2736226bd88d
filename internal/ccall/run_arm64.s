// Calls by the convention of AAPCS64. runtime.cgocall calls run on the system stack with the first frame in R0; frames run
// until the next one is nil or has no function.

#include "textflag.h"
#include "go_asm.h"

#define STACK 192 // arguments 9 to 32

GLOBL ·run(SB), NOPTR|RODATA, $8
DATA ·run(SB)/8, $run<>(SB)
TEXT run<>(SB), NOSPLIT, $0
	SUB  $STACK, RSP
	MOVD R0, R19

next:
	MOVD Frame_Fn(R19), R9
	CBZ  R9, done
	MOVD Frame_Args(R19), R9
	ADD  $Frame__size, R19, R10
	SUBS $8, R9, R11
	BLE  registers
	ADD  $(8*8), R10, R12
	MOVD RSP, R13

stack:
	MOVD.P 8(R12), R14
	MOVD.P R14, 8(R13)
	SUBS   $1, R11
	BNE    stack

registers:
	CBZ  R9, call
	MOVD (0*8)(R10), R0
	CMP  $1, R9
	BEQ  call
	MOVD (1*8)(R10), R1
	CMP  $2, R9
	BEQ  call
	MOVD (2*8)(R10), R2
	CMP  $3, R9
	BEQ  call
	MOVD (3*8)(R10), R3
	CMP  $4, R9
	BEQ  call
	MOVD (4*8)(R10), R4
	CMP  $5, R9
	BEQ  call
	MOVD (5*8)(R10), R5
	CMP  $6, R9
	BEQ  call
	MOVD (6*8)(R10), R6
	CMP  $7, R9
	BEQ  call
	MOVD (7*8)(R10), R7

call:
	MOVD Frame_Fn(R19), R9
	BL   (R9)
	MOVD R0, Frame_Result(R19)
	MOVD Frame_Next(R19), R20
	CBZW R0, follow
	MOVD Frame_Fail(R19), R9
	CMP  $0, R9
	CSEL NE, R9, R20, R20

follow:
	MOVD R20, R19
	CBNZ R19, next

done:
	ADD  $STACK, RSP
	RET
